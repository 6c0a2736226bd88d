package vk

import (
	"fmt"
	"os"
	"sync"
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
