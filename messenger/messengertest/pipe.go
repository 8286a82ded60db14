package messengertest

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// window is how many bytes are on their way in one direction before a writer
// waits.
const window = 256 << 10

const unlimited = 1 << 62

// pair is a connection: two directions.
type pair struct {
	n     *Network
	hosts [2]string
	half  [2]half // [i] carries what end i writes
	left  atomic.Int64
	gone  atomic.Int32 // ends that have closed
}

func newPair(n *Network, from, to string) *pair {
	p := &pair{n: n, hosts: [2]string{from, to}}
	for i := range p.half {
		p.half[i].init()
	}
	return p
}

func (p *pair) between(a, b string) bool {
	return (p.hosts[0] == a && p.hosts[1] == b) || (p.hosts[0] == b && p.hosts[1] == a)
}

func (p *pair) ends(local, remote net.Addr) (dialer, acceptor *end) {
	return &end{p: p, i: 0, local: local, remote: remote}, &end{p: p, i: 1, local: remote, remote: local}
}

// reset fails both directions at both ends.
func (p *pair) reset() {
	for i := range p.half {
		p.half[i].fail()
	}
	p.forget()
}

func (p *pair) forget() {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	delete(p.n.conns, p)
}

// take counts bytes against the connection's limit.
func (p *pair) take(k int) int {
	left := p.left.Add(-int64(k))
	if left >= 0 {
		return k
	}
	return max(0, k+int(left))
}

// half is one direction.
type half struct {
	mu       sync.Mutex
	cond     sync.Cond
	chunks   []chunk
	buffered int
	closed   bool // the writer has said the end
	deaf     bool // the reader has gone
	failed   bool
	blocked  bool // a split: nothing passes
	readBy   time.Time
	writeBy  time.Time
}

// chunk is bytes that arrive at a time.
type chunk struct {
	at   time.Time
	data []byte
}

func (h *half) init() { h.cond.L = &h.mu }

func (h *half) setBlocked(b bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blocked = b
	h.cond.Broadcast()
}

func (h *half) fail() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = true
	h.chunks, h.buffered = nil, 0
	h.cond.Broadcast()
}

// wait waits for a change, or until t. h.mu is held.
func (h *half) wait(t time.Time) {
	if t.IsZero() {
		h.cond.Wait()
		return
	}
	timer := time.AfterFunc(time.Until(t), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.cond.Broadcast()
	})
	h.cond.Wait()
	timer.Stop()
}

func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func (h *half) read(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		var next time.Time
		switch {
		case h.failed:
			return 0, syscall.ECONNRESET
		case h.deaf:
			return 0, net.ErrClosed
		case passed(h.readBy):
			return 0, os.ErrDeadlineExceeded
		case h.blocked:
		case len(h.chunks) > 0 && !time.Now().Before(h.chunks[0].at):
			c := &h.chunks[0]
			n := copy(b, c.data)
			c.data = c.data[n:]
			if len(c.data) == 0 {
				h.chunks[0] = chunk{}
				h.chunks = h.chunks[1:]
			}
			h.buffered -= n
			h.cond.Broadcast()
			return n, nil
		case len(h.chunks) > 0:
			next = h.chunks[0].at
		case h.closed:
			return 0, io.EOF
		}
		if len(b) == 0 {
			return 0, nil
		}
		h.wait(earlier(h.readBy, next))
	}
}

// write takes what fits, waiting for room for the rest.
func (h *half) write(b []byte, latency time.Duration) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(b) > 0 {
		switch {
		case h.failed, h.deaf && !h.blocked:
			return n, syscall.ECONNRESET
		case h.closed:
			return n, net.ErrClosed
		case passed(h.writeBy):
			return n, os.ErrDeadlineExceeded
		case h.buffered < window:
			k := min(len(b), window-h.buffered)
			at := time.Now().Add(latency)
			if last := len(h.chunks) - 1; last >= 0 && at.Before(h.chunks[last].at) {
				at = h.chunks[last].at // bytes do not overtake
			}
			h.chunks = append(h.chunks, chunk{at, append([]byte(nil), b[:k]...)})
			h.buffered += k
			b, n = b[k:], n+k
			h.cond.Broadcast()
		default:
			h.wait(h.writeBy)
		}
	}
	return n, nil
}

// end is one end of a connection.
type end struct {
	p             *pair
	i             int
	local, remote net.Addr
	once          sync.Once
}

var _ net.Conn = (*end)(nil)

func (e *end) out() *half { return &e.p.half[e.i] }
func (e *end) in() *half  { return &e.p.half[1-e.i] }

func (e *end) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "mem", Source: e.local, Addr: e.remote, Err: err}
}

// Read implements net.Conn.
func (e *end) Read(b []byte) (int, error) {
	n, err := e.in().read(b)
	return n, e.opError("read", err)
}

// Write implements net.Conn. A connection that has a limit ends in the middle of
// the write that exceeds it.
func (e *end) Write(b []byte) (int, error) {
	k := e.p.take(len(b))
	var latency time.Duration
	e.p.n.mu.Lock()
	f := e.p.n.latency
	e.p.n.mu.Unlock()
	if f != nil {
		latency = f(e.p.hosts[e.i], e.p.hosts[1-e.i])
	}
	n, err := e.out().write(b[:k], latency)
	if err == nil && k < len(b) {
		e.p.reset()
		err = syscall.ECONNRESET
	}
	return n, e.opError("write", err)
}

// CloseWrite tells the peer that nothing more comes.
func (e *end) CloseWrite() error {
	h := e.out()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.cond.Broadcast()
	return nil
}

// Close implements net.Conn: what was written still arrives.
func (e *end) Close() error {
	e.once.Do(func() {
		_ = e.CloseWrite()
		h := e.in()
		h.mu.Lock()
		h.deaf = true
		h.chunks, h.buffered = nil, 0
		h.cond.Broadcast()
		h.mu.Unlock()
		h = e.out() // our own waiting writes end too
		h.mu.Lock()
		h.cond.Broadcast()
		h.mu.Unlock()
		if e.p.gone.Add(1) == 2 {
			e.p.forget()
		}
	})
	return nil
}

// LocalAddr implements net.Conn.
func (e *end) LocalAddr() net.Addr { return e.local }

// RemoteAddr implements net.Conn.
func (e *end) RemoteAddr() net.Addr { return e.remote }

// SetDeadline implements net.Conn.
func (e *end) SetDeadline(t time.Time) error {
	_ = e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (e *end) SetReadDeadline(t time.Time) error {
	h := e.in()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readBy = t
	h.cond.Broadcast()
	return nil
}

// SetWriteDeadline implements net.Conn.
func (e *end) SetWriteDeadline(t time.Time) error {
	h := e.out()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writeBy = t
	h.cond.Broadcast()
	return nil
}
