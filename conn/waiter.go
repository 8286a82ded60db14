package conn

import "sync"

// waiter is a goroutine that waits for its turn to send.
type waiter struct {
	ready      chan struct{} // capacity 1
	prev, next *waiter
}

func (w *waiter) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

var waiterPool = sync.Pool{New: func() any { return &waiter{ready: make(chan struct{}, 1)} }}

// waitList is the waiters of a connection, in order of arrival.
type waitList struct{ head, tail *waiter }

func (l *waitList) empty() bool { return l.head == nil }

func (l *waitList) push() *waiter {
	w := waiterPool.Get().(*waiter)
	w.prev = l.tail
	if l.tail != nil {
		l.tail.next = w
	} else {
		l.head = w
	}
	l.tail = w
	return w
}

// remove ends w's wait and gives it up.
func (l *waitList) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.tail = w.prev
	}
	w.prev, w.next = nil, nil
	select {
	case <-w.ready:
	default:
	}
	waiterPool.Put(w)
}

func (l *waitList) wakeAll() {
	for w := l.head; w != nil; w = w.next {
		w.wake()
	}
}
