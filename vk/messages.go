package vk

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
)

// maxQueued bounds the messages that wait for pump; later ones are dropped: the first ones matter.
const maxQueued = 4096

// hostMessages is a queue of messages. A layer reports on whatever thread Vulkan was called from, driver threads
// included, and under its locks. So the callback does no more than to append here; pump calls Options.OnMessage later,
// when no layer waits.
type hostMessages struct {
	id     uintptr
	mu     sync.Mutex
	list   []Message
	unread atomic.Int32 // len(list), for a cheap look
}

// messageQueues are the open queues by the number that C has as user data.
var messageQueues struct {
	sync.Mutex
	last uintptr
	open map[uintptr]*hostMessages
}

func hostMessagesNew() *hostMessages {
	m := new(hostMessages)
	q := &messageQueues
	q.Lock()
	defer q.Unlock()
	if q.open == nil {
		q.open = map[uintptr]*hostMessages{}
	}
	q.last++
	m.id = q.last
	q.open[m.id] = m
	return m
}

func hostMessagesFree(m *hostMessages) {
	messageQueues.Lock()
	defer messageQueues.Unlock()
	delete(messageQueues.open, m.id)
}

// take takes the oldest message.
func (m *hostMessages) take() (Message, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list) == 0 {
		return Message{}, false
	}
	first := m.list[0]
	m.list = m.list[1:]
	m.unread.Add(-1)
	return first, true
}

// messenger describes the messages that go to the queue.
func (m *hostMessages) messenger() *vkDebugUtilsMessengerCreateInfoEXT {
	return headed(vkDebugUtilsMessengerCreateInfoEXT{
		messageSeverity: vkDebugUtilsMessageSeverityWarningBitEXT | vkDebugUtilsMessageSeverityErrorBitEXT,
		messageType:     vkDebugUtilsMessageTypeValidationBitEXT | vkDebugUtilsMessageTypePerformanceBitEXT,
		pfnUserCallback: onMessage(),
		pUserData:       m.id,
	})
}

// onMessage is the callback of all messengers: the number of callbacks of a process is limited.
var onMessage = sync.OnceValue(func() uintptr {
	return purego.NewCallback(func(severity, _ uintptr, data *vkDebugUtilsMessengerCallbackDataEXT, id uintptr) uintptr {
		messageQueues.Lock()
		m := messageQueues.open[id]
		messageQueues.Unlock()
		if m == nil {
			return 0
		}
		message := Message{Severity(severity), valid(textAt(data.pMessageIdName)), data.messageIdNumber, valid(withNames(data))}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.list) < maxQueued {
			m.list = append(m.list, message)
			m.unread.Add(1)
		}
		return 0 // the call goes ahead
	})
})

// withNames is the text, followed by the names that objects were given.
func withNames(data *vkDebugUtilsMessengerCallbackDataEXT) string {
	text := textAt(data.pMessage)
	for _, o := range unsafe.Slice(data.pObjects, data.objectCount) {
		if o.pObjectName != nil {
			text += " [" + textAt(o.pObjectName) + "]"
		}
	}
	return text
}
