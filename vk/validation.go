package vk

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
)

// ValidationEnv is the environment variable that turns on Options.Validation: "1" does,
// "0" and "" do not; Open refuses other values.
const ValidationEnv = "VKATTN_VALIDATION"

// ValidationByEnv reports whether ValidationEnv turns on validation. For a value that is
// not "1", "0" or "" the error matches ErrInvalid.
func ValidationByEnv() (bool, error) {
	switch v := os.Getenv(ValidationEnv); v {
	case "", "0":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, invalid("Open", "%s is %q, want 1, 0 or nothing", ValidationEnv, v)
	}
}

// Severity of a message (VkDebugUtilsMessageSeverityFlagBitsEXT).
type Severity uint32

// Severities that are collected.
const (
	SeverityWarning Severity = 0x100
	SeverityError   Severity = 0x1000
)

func (s Severity) String() string {
	switch s {
	case SeverityWarning:
		return "warning"
	case SeverityError:
		return "error"
	}
	return fmt.Sprintf("Severity(%#x)", uint32(s))
}

// Message is a message of a validation layer.
type Message struct {
	Severity Severity
	ID       string // e.g. "VUID-vkCmdDispatch-groupCountX-00386"
	Number   int32
	Text     string // with the names of the objects concerned in brackets
}

func (m Message) String() string { return fmt.Sprintf("%v %s: %s", m.Severity, m.ID, m.Text) }

// maxMessages bounds the messages that a device remembers; OnMessage gets all.
const maxMessages = 1024

// messageLog collects validation messages. Layers report on any thread into a queue, which pump empties after each
// call.
type messageLog struct {
	c     *hostMessages
	on    func(Message)
	pumps sync.Mutex // OnMessage is called by one goroutine at a time
	mu    sync.Mutex
	list  []Message
}

func newMessageLog(on func(Message)) *messageLog {
	if on == nil {
		on = func(m Message) { fmt.Fprintln(os.Stderr, "vulkan:", m) }
	}
	return &messageLog{c: hostMessagesNew(), on: on}
}

// pump delivers the messages that have arrived. Without any it costs one atomic load.
func (l *messageLog) pump() {
	if l == nil || l.c == nil || l.c.unread.Load() == 0 {
		return
	}
	if !l.pumps.TryLock() {
		return // another goroutine delivers, or OnMessage used a device
	}
	defer l.pumps.Unlock()
	for {
		m, ok := l.c.take()
		if !ok {
			return
		}
		l.mu.Lock()
		if len(l.list) < maxMessages {
			l.list = append(l.list, m)
		}
		l.mu.Unlock()
		l.on(m)
	}
}

func (l *messageLog) messages() []Message {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Message(nil), l.list...)
}

// close is called when no layer can report any more.
func (l *messageLog) close() {
	if l == nil || l.c == nil {
		return
	}
	l.pump()
	l.pumps.Lock()
	defer l.pumps.Unlock()
	hostMessagesFree(l.c)
	l.c = nil
}

// ValidationMessages returns the messages of the validation layers so far, at most the
// first 1024. It works on a closed device too.
func (d *Device) ValidationMessages() []Message {
	if d == nil {
		return nil
	}
	if d.stay() {
		d.log.pump()
		d.life.RUnlock()
	}
	return d.log.messages()
}

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
