package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// ask is what a request wants memory for.
type ask uint8

const (
	askRecv ask = iota // a receive buffer
	askList            // a rendezvous payload
)

// request is a wish for arena memory on behalf of a connection.
type request struct {
	c    *Conn
	kind ask
	n    int64 // bytes
}

// supplier waits for arena memory where a poller must not, in order of arrival.
type supplier struct {
	e    *Endpoint
	bell chan struct{} // capacity 1: q is not empty

	mu sync.Mutex
	q  []request
}

func newSupplier(e *Endpoint) *supplier { return &supplier{e: e, bell: make(chan struct{}, 1)} }

// ask queues a request. It does not block.
func (s *supplier) ask(r request) {
	s.mu.Lock()
	s.q = append(s.q, r)
	s.mu.Unlock()
	select {
	case s.bell <- struct{}{}:
	default:
	}
}

// run is the supplier's goroutine. It belongs to the endpoint and ends with ctx.
func (s *supplier) run(ctx context.Context) {
	for {
		s.mu.Lock()
		q := s.q
		s.q = nil
		s.mu.Unlock()
		for _, r := range q {
			s.serve(r)
		}
		if len(q) > 0 {
			continue
		}
		select {
		case <-s.bell:
		case <-ctx.Done():
			return
		}
	}
}

// longWait is how long memory may be waited for before it is worth a line in
// the log: the connection stands still meanwhile.
const longWait = time.Second

// serve waits for the memory of one request, as long as its connection lives,
// and hands it to the poller.
func (s *supplier) serve(r request) {
	began := time.Now()
	t := time.AfterFunc(longWait, func() {
		r.c.note(slog.LevelWarn, "a connection stands still: no arena memory for what it has received; it goes on when somebody releases some, or with a larger arena",
			"bytes", r.n, "account", fmt.Sprintf("%+v", s.e.arena.Account()))
	})
	defer func() {
		if !t.Stop() {
			r.c.note(slog.LevelInfo, "a connection has stood still for want of memory", "bytes", r.n, "for", time.Since(began))
		}
	}()
	var b buffer.RDMABuffer
	var l *buffer.List
	var err error
	switch {
	case r.kind == askList:
		l, err = s.list(r)
	default:
		b, err = s.e.arena.Get(r.c.life, int(r.n), s.e.recvOwner)
	}
	p := r.c.p
	p.mu.Lock()
	reaped := r.c.rx.reaped
	if !reaped {
		switch {
		case err != nil:
			r.c.rx.supplyErr = err
		case l != nil:
			r.c.rx.gotList = l
		default:
			r.c.rx.bufs = append(r.c.rx.bufs, b)
		}
	}
	p.mu.Unlock()
	if !reaped {
		r.c.kick(mailSupply)
		return
	}
	if l != nil {
		l.Release()
	}
	if err == nil && l == nil {
		b.Release()
	}
}

// list waits for a list of r.n bytes. Receive buffers stay posted for long and
// can not move: where each chunk of the arena has one, no chunk becomes free
// though most of the memory is. So it takes what there is, in pieces, when it
// has waited for long.
func (s *supplier) list(r request) (*buffer.List, error) {
	for {
		ctx, cancel := context.WithTimeout(r.c.life, longWait)
		l, err := s.e.sinks.GetList(ctx, r.n, s.e.sinkOwner)
		cancel()
		if err == nil || r.c.life.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return l, err
		}
		if l, ok := s.pieces(r.n); ok {
			return l, nil
		}
	}
}

// minPiece is the least of the pieces of a list: each costs a READ, or several
// share one where the device scatters.
const minPiece = 16 << 10

// pieces gets n bytes in buffers as large as there are, all or none.
func (s *supplier) pieces(n int64) (*buffer.List, bool) {
	l := buffer.NewList()
	for _, size := range slices.Backward(s.e.sinks.Classes()) {
		for n > 0 && size >= minPiece {
			b, ok := s.e.sinks.TryGet(int(min(n, int64(size))), s.e.sinkOwner)
			if !ok {
				break
			}
			l.Append(b)
			n -= int64(b.Len())
		}
	}
	if n > 0 {
		l.Release()
		return nil, false
	}
	return l, true
}

// supplied takes what the supplier has brought.
func (c *Conn) supplied() {
	c.p.mu.Lock()
	bufs, l, err := c.rx.bufs, c.rx.gotList, c.rx.supplyErr
	c.rx.bufs, c.rx.gotList, c.rx.supplyErr = nil, nil, nil
	c.p.mu.Unlock()
	for _, b := range bufs {
		c.rx.waiting--
		c.repost(b, false)
	}
	c.allGiven()
	if err != nil {
		c.fail(c.fault(FaultLocal, err))
	}
	if l == nil {
		return
	}
	c.rx.list = l
	if c.rx.gate == gateMemory {
		c.reopen()
	}
}
