package messenger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Reason is why a call is not answered.
type Reason uint8

// The reasons of a RemoteError.
const (
	// ReasonUnanswered: the handler has released the call without an answer.
	ReasonUnanswered Reason = iota + 1
	// ReasonUnhandled: no dispatcher has consumed it.
	ReasonUnhandled
	// ReasonPanic: its handler has panicked.
	ReasonPanic
	// ReasonRefused: the handler has refused it, see Message.Refuse.
	ReasonRefused
	// ReasonDraining: the peer takes no calls any more, see Messenger.Drain.
	ReasonDraining
	// ReasonTooLarge: the answer was too large for us, the transport or the peer
	// itself, and the handler has given no other.
	ReasonTooLarge
)

var reasonNames = [...]string{"unknown", "released without an answer", "no handler", "the handler panicked", "refused",
	"draining", "the answer is too large"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// RemoteError is the end of a Call that the peer has had and will not answer.
// It matches ErrRemote, and with ReasonPanic, ReasonDraining and ReasonTooLarge
// ErrHandlerPanic, ErrDraining and ErrTooLarge. Whether the peer has done what it
// was asked for is not known but for ReasonUnhandled and ReasonDraining: it has
// not.
type RemoteError struct {
	Peer   EntityName
	Reason Reason
	Code   uint32 // of ReasonRefused: the handler's
	Text   string // of ReasonRefused: the handler's; at most 512 bytes
}

func (e *RemoteError) Error() string {
	s := fmt.Sprintf("messenger: %v does not answer the call: %v", e.Peer, e.Reason)
	if e.Code != 0 {
		s += fmt.Sprintf(" (code %d)", e.Code)
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// Is implements errors.Is.
func (e *RemoteError) Is(target error) bool {
	switch target {
	case ErrRemote:
		return true
	case ErrHandlerPanic:
		return e.Reason == ReasonPanic
	case ErrDraining:
		return e.Reason == ReasonDraining
	case ErrTooLarge:
		return e.Reason == ReasonTooLarge
	}
	return false
}

// maxRefusalText bounds the text of a refusal, bytes.
const maxRefusalText = 512

// Refuse tells the caller of m, a received call, that it will not be answered:
// its Call ends at once with a *RemoteError of ReasonRefused, code and text (cut
// to 512 bytes). It borrows m, does not block, and is in place of Reply: after
// either it does nothing, as on what is no call. Callers whose messenger does
// not know refusals (a Ceph daemon) wait on.
func (m *Message) Refuse(code uint32, text string) { m.refuse(ReasonRefused, code, text) }

// refuse is Refuse for any reason.
func (m *Message) refuse(r Reason, code uint32, text string) {
	if m.debt != nil {
		m.debt.refuse(r, code, text)
	}
}

// debt is that a received call has not been answered. The message and whoever
// runs its handler have it, so that a handler that has released the message and
// then panics is known for what it did.
type debt struct {
	c        *Connection
	tid      uint64
	open     atomic.Bool // neither answered nor refused
	running  atomic.Bool // the handler may still panic
	gone     atomic.Bool // the message has been released
	late     atomic.Bool // when the caller did not wait any more: it need not be told
	tooLarge atomic.Bool // an answer was too large, and no other has been given
	refs     atomic.Int32
}

var debts = sync.Pool{New: func() any { return new(debt) }}

// owe gives a received call a debt, and returns the other reference to it.
func (m *Message) owe() *debt {
	d := debts.Get().(*debt)
	d.c, d.tid = m.Conn, m.TID
	d.open.Store(true)
	d.running.Store(true)
	d.gone.Store(false)
	d.late.Store(false)
	d.tooLarge.Store(false)
	d.refs.Store(2)
	m.debt = d
	return d
}

func (d *debt) refuse(r Reason, code uint32, text string) {
	if d.open.CompareAndSwap(true, false) {
		d.c.refuseCall(d.tid, r, code, text)
	}
}

// abandon is the message's end; late: the caller has given the call up, or its
// deadline is over. While the handler runs it may be that it panics: that is said
// then.
func (d *debt) abandon(late bool) {
	d.late.Store(late)
	d.gone.Store(true)
	if !d.running.Load() {
		d.unanswered()
	}
	d.drop()
}

func (d *debt) unanswered() {
	switch {
	case d.late.Load():
	case d.tooLarge.Load():
		d.refuse(ReasonTooLarge, 0, "")
	default:
		d.refuse(ReasonUnanswered, 0, "")
	}
}

// returned is the handler's end; d is nil for what is no call.
func (d *debt) returned(panicked bool) {
	if d == nil {
		return
	}
	d.running.Store(false)
	if panicked {
		d.refuse(ReasonPanic, 0, "")
	}
	if d.gone.Load() {
		d.unanswered()
	}
	d.drop()
}

func (d *debt) drop() {
	if d.refs.Add(-1) == 0 {
		d.c = nil
		debts.Put(d)
	}
}

// maxRefusals is how many refusals of one connection may wait to be sent, or to
// be acknowledged, 0.7 KB each. Nothing else bounds them: a call that is refused
// has given its throttles back, so that two peers who refuse each other's calls do
// not wait for each other, and the queue's limits are those of who may wait. A peer
// that reads gets near it only with as many calls under way.
const maxRefusals = 32 << 10

// refuseCall tells the peer that its call tid will not be answered. A peer that
// goes on calling and does not take the refusals loses the session.
func (c *Connection) refuseCall(tid uint64, r Reason, code uint32, text string) {
	c.m.n.callsRefused.Add(1)
	if !c.loop && c.refusals.Load() >= maxRefusals {
		c.mu.Lock()
		c.fatal(&FaultError{Peer: c.peer.String(), Op: "refuse",
			Err: fmt.Errorf("%w: %d refusals of its calls have not been taken", ErrProtocol, maxRefusals)})
		return
	}
	m := NewMessage(typeRefused)
	m.TID = tid
	m.Front = append(m.Front, byte(r))
	m.Front = binary.LittleEndian.AppendUint32(m.Front, code)
	m.Front = append(m.Front, text[:min(len(text), maxRefusalText)]...)
	if c.loop {
		c.callRefused(m)
		m.Release()
		return
	}
	c.refusals.Add(1)
	m.done = c.refusalFn
	if err := c.queueOwn(nil, m); err != nil {
		m.Release() // the call has ended with its connection, or will
	}
}

// callRefused ends the call that m, which it borrows, is about. false: m is
// malformed.
func (c *Connection) callRefused(m *Message) bool {
	if len(m.Front) < 5 || len(m.Front) > 5+maxRefusalText {
		return false
	}
	text := strings.ToValidUTF8(string(m.Front[5:]), string(utf8.RuneError))
	c.failCall(m.TID, &RemoteError{
		Peer: c.peerName(), Reason: Reason(m.Front[0]), Code: binary.LittleEndian.Uint32(m.Front[1:]), Text: text,
	})
	return true
}

// failCall ends a call of ours, if it still waits.
func (c *Connection) failCall(tid uint64, err error) {
	c.mu.Lock()
	k, ok := c.calls[tid]
	delete(c.calls, tid)
	c.mu.Unlock()
	if ok {
		k.ch <- answer{err: err}
	}
}

// refusals is what a handshake is refused for, by the number in a REFUSED frame, and
// what a client that has not authenticated is told of it. It may be anybody: what
// exactly was wrong with its certificate, say, is for our own log.
var refusals = [...]struct {
	class error
	text  string
}{
	1: {ErrAuth, "authentication has failed, its log says why"},
	2: {ErrFeatures, "features that one side requires are missing"},
	3: {ErrWrongPeer, "it is not the peer, or the incarnation, that was asked for"},
	4: {ErrDraining, "it takes no new sessions"},
}

// refusal is what a server says to a client before it closes the connection
// because of err, in place of out. What breaks the protocol is not worth an answer.
func (h *handshake) refusal(out [][]byte, err error) [][]byte {
	if errors.Is(err, ErrForged) || errors.Is(err, errSignature) || (errors.Is(err, ErrFeatures) && len(out) > 0) {
		return out
	}
	for reason, r := range refusals {
		if r.class == nil || !errors.Is(err, r.class) {
			continue
		}
		h.toldWhy = true
		text := r.text
		if h.at >= hsIdent {
			text = strings.TrimPrefix(err.Error(), r.class.Error()+": ")
		}
		return h.frame(nil, &msgr2.Refused{Reason: uint8(reason), Text: []byte(text)})
	}
	return out
}

// refused is the client's error for a refusal.
func refused(f *msgr2.Refused) error {
	class := errPeerRefuses
	if int(f.Reason) < len(refusals) && refusals[f.Reason].class != nil {
		class = refusals[f.Reason].class
	}
	return fmt.Errorf("%w: the peer says: %s", class, strings.ToValidUTF8(string(f.Text), "?"))
}

var errPeerRefuses = errors.New("messenger: refused")

// failAfterFlush ends the connection's transport by a fault, as link.fail, once
// what is queued has left, within grace. Where that is so already it does nothing.
func (c *Connection) failAfterFlush(op string, err error) {
	c.mu.Lock()
	l := c.link
	if l == nil || !l.leaving(op, err) {
		c.mu.Unlock()
		return
	}
	c.m.wg.Add(1)
	c.mu.Unlock()
	go func() { // ends within grace, and with the link
		defer c.m.wg.Done()
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		_ = c.flush(ctx) // as far as it gets
		l.leave(ctx)
	}()
}

// leaving says why the link is about to end, whatever ends it first. false: it is
// leaving already. From here on no message is taken in, see receive.
func (l *link) leaving(op string, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.because != nil {
		return false
	}
	l.because = &FaultError{Peer: l.remote, Op: op, Err: err}
	l.last.Store(true)
	return true
}

// leave ends the link, which is leaving, after what was sent has left, or ctx
// ends.
func (l *link) leave(ctx context.Context) {
	if t := l.transport(); t != nil {
		t.goodbye(ctx)
	}
	l.fail("leave", nil)
}
