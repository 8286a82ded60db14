package verbstest

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Op is a call into a driver.
type Op uint8

// The calls that a Script sees. Getters are not among them.
const (
	CallAllocPD Op = iota
	CallCreateCompChannel
	CallCreateCQ
	CallListen
	CallNextEvent
	CallCloseDevice
	CallRegMR
	CallRegScoped
	CallAllocMW
	CallCreateSRQ
	CallCreateQP
	CallDeallocPD
	CallDeregister
	CallDeallocMW
	CallPoll
	CallReqNotify
	CallDestroyCQ
	CallWait
	CallCloseCompChannel
	CallPostSend
	CallPostRecv
	CallConnect
	CallEndpoint
	CallModify
	CallSetState
	CallState
	CallDisconnect
	CallDestroyQP
	CallPostSRQRecv
	CallSetLimit
	CallDestroySRQ
	CallAcceptRequest // Listener.Accept
	CallCloseListener
	CallAccept // ConnRequest.Accept
	CallReject

	opCount
)

var opNames = [opCount]string{
	"AllocPD", "CreateCompChannel", "CreateCQ", "Listen", "NextEvent", "CloseDevice", "RegMR", "RegScoped", "AllocMW", "CreateSRQ",
	"CreateQP", "DeallocPD", "Deregister", "DeallocMW", "Poll", "ReqNotify", "DestroyCQ", "Wait", "CloseCompChannel", "PostSend",
	"PostRecv", "Connect", "Endpoint", "Modify", "SetState", "State", "Disconnect", "DestroyQP", "PostSRQRecv", "SetLimit", "DestroySRQ", "AcceptRequest",
	"CloseListener", "Accept", "Reject",
}

func (o Op) String() string {
	if o < opCount {
		return opNames[o]
	}
	return strconv.Itoa(int(o))
}

// Polled reports whether how often the call is made depends on timing, so that
// counting it tells nothing.
func (o Op) Polled() bool {
	switch o {
	case CallPoll, CallReqNotify, CallWait, CallNextEvent, CallState, CallAcceptRequest:
		return true
	}
	return false
}

// Destroys reports whether the call ends an object.
func (o Op) Destroys() bool {
	switch o {
	case CallCloseDevice, CallDeallocPD, CallDeregister, CallDeallocMW, CallDestroyCQ, CallCloseCompChannel, CallDestroyQP,
		CallDestroySRQ, CallCloseListener:
		return true
	}
	return false
}

// Call is one call into a driver, before it is made.
type Call struct {
	Op  Op
	N   int // of its Op, from 0, over all devices of the Script
	Len int // PostSend, PostRecv: requests; Poll: room
}

// Fault is what happens to a call. The zero value is nothing.
type Fault struct {
	// Err is returned and the call is not made, except that a Connect or
	// Accept leaves its QP in ERR and its request refused, as drivers do.
	Err error
	// Accept is how many of the requests of a post are made before Err.
	Accept int
	// Wait is received from before the call goes on. Not for posts and polls.
	Wait <-chan struct{}
	// Flush puts the QP of the call to ERR before the call is made.
	Flush bool
}

// Script decides the faults of one or more devices. Its functions are called
// from many goroutines, but one at a time; nil ones change nothing.
type Script struct {
	// Call is asked before each call into the driver.
	Call func(Call) Fault
	// Poll is given what a CQ of the device had and returns what the caller of
	// Poll gets instead: it may drop, change, repeat or reorder completions,
	// and keep some back for a later call. It is called with none too. What is
	// kept back is not announced on the completion channel.
	Poll func([]driver.WC) []driver.WC
	// Event may change an event; false drops it.
	Event func(*driver.Event) bool
	// Caps may take capabilities away, so that callers do without.
	Caps func(*driver.Caps)

	mu    sync.Mutex
	calls [opCount]int
	fired int
}

func (s *Script) call(op Op, n int) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Call{Op: op, N: s.calls[op], Len: n}
	s.calls[op]++
	if s.Call == nil {
		return Fault{}
	}
	f := s.Call(c)
	if f.Err != nil || f.Wait != nil || f.Flush {
		s.fired++
	}
	return f
}

// enter is call for what is no post: it waits, and returns the error.
func (s *Script) enter(op Op) error {
	f := s.call(op, 0)
	if f.Wait != nil {
		<-f.Wait
	}
	return f.Err
}

// Fired counts the calls that had a fault.
func (s *Script) Fired() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fired
}

// Calls counts the calls of op.
func (s *Script) Calls(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[op]
}

// FailKth is a Script that fails one call: the k-th, from 0, of those that
// count accepts (nil: all whose number does not depend on timing, see
// Op.Polled).
func FailKth(k int, err error, count func(Op) bool) *Script {
	if count == nil {
		count = func(o Op) bool { return !o.Polled() }
	}
	n := 0
	return &Script{Call: func(c Call) Fault {
		if !count(c.Op) {
			return Fault{}
		}
		n++
		if n-1 != k {
			return Fault{}
		}
		return Fault{Err: fmt.Errorf("%v failed by script: %w", c.Op, err)}
	}}
}

// FailEach calls run with a Script that fails the k-th counted driver call (see
// FailKth), for k = 0, 1, 2 ..., each in a subtest, until a run in which nothing
// failed. run opens its devices over NewFaulty with that Script, does its work,
// closes what it made whatever happened, and checks; it is told whether the
// fault was met by s.Fired. Where the environment has ARGONAUT_FAULT_STRIDE=n,
// only every n-th k is tried: under emulation each run takes seconds.
func FailEach(t *testing.T, err error, count func(Op) bool, run func(t *testing.T, s *Script)) {
	const most = 10_000 // calls: run does not end by itself
	stride := 1
	if v := os.Getenv("ARGONAUT_FAULT_STRIDE"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("ARGONAUT_FAULT_STRIDE=%q: not a number above 0", v)
		}
		stride = n
	}
	for k := 0; k < most; k += stride {
		s := FailKth(k, err, count)
		t.Run(strconv.Itoa(k), func(t *testing.T) { run(t, s) })
		if t.Failed() {
			return
		}
		if s.Fired() == 0 {
			if k == 0 {
				t.Fatal("the run made no call that could fail")
			}
			return
		}
	}
	t.Fatalf("still failing after %d calls", most)
}
