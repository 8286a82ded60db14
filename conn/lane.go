package conn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// laneConns is how many connections share a completion queue, at most: what the
// queue's memory and the polling of idle queues are balanced by.
const laneConns = 32

// lane is a completion queue of a poller, with the connections on it and, where
// the device has them, the shared receive queue that they use.
//
// Credits promise receive buffers, so the SRQ always owns at least as many as
// its connections have credits: buffers posted, in packets not yet delivered,
// or being waited for.
type lane struct {
	p     *poller
	cq    *verbs.CQ
	srq   *verbs.SRQ // nil: each QP has its own receive queue
	rq    *recvQueue // of srq
	armed bool       // the poller's: an announcement is due

	members int         // connections; guarded by Endpoint.mu
	failed  atomic.Bool // it gets no further ones, and goes with the last

	mu    sync.RWMutex
	conns map[uint32]*Conn // by QPN
	want  int              // credits of the connections
	owned int              // buffers of the SRQ
}

func (e *Endpoint) newLane(p *poller) (*lane, error) {
	l := &lane{p: p, conns: make(map[uint32]*Conn)}
	perConn := e.cfg.SendDepth + e.cfg.OpDepth + e.cfg.Credits + e.bindDepth()
	cq, err := e.dev.CreateCQ(verbs.CQConfig{
		Depth: e.laneConns * perConn, Channel: p.ch, Vector: p.index, OnEvent: l.event,
	})
	if err != nil {
		return nil, err
	}
	l.cq = cq
	if e.useSRQ {
		depth := e.laneConns * e.cfg.Credits
		l.srq, err = e.pd.CreateSRQ(verbs.SRQConfig{MaxWR: depth, OnEvent: l.event})
		if err != nil {
			return nil, errors.Join(err, cq.Close())
		}
		l.rq = newRecvQueue(e.pd, depth, l.srq.PostRecv)
	}
	return l, nil
}

// errLane is why a connection is not made on a lane that has failed meanwhile.
var errLane = errors.New("the queues that it shares have failed")

// event runs on the device's event goroutine: the CQ or the SRQ has failed, so
// that completions are lost.
func (l *lane) event(ev verbs.Event) {
	if ev.Type == verbs.EventSRQLimitReached {
		return
	}
	l.failAll(fmt.Errorf("%v", ev.Type))
}

// failAll ends every connection of the lane by a local fault, and the lane with
// the last of them: its queues have failed.
func (l *lane) failAll(err error) {
	l.failed.Store(true) // first: who is not seen by endAll sees it in enter
	l.endAll(err)
}

// endAll ends every connection of the lane by a local fault.
func (l *lane) endAll(err error) {
	l.mu.RLock()
	all := make([]*Conn, 0, len(l.conns))
	for _, c := range l.conns {
		all = append(all, c)
	}
	l.mu.RUnlock()
	for _, c := range all {
		c.fail(c.fault(FaultLocal, err))
	}
}

func (l *lane) conn(qpn uint32) *Conn {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.conns[qpn]
}

// enter makes completions of c's QP find c, and c the failure of the lane.
func (l *lane) enter(c *Conn) error {
	l.mu.Lock()
	l.conns[c.qp.QPN()] = c
	l.mu.Unlock()
	if l.failed.Load() {
		return c.fault(FaultLocal, errLane)
	}
	return nil
}

// supply posts the receive buffers that c promises its peer. It blocks for arena
// memory.
func (l *lane) supply(ctx context.Context, c *Conn) error {
	n := c.e.cfg.Credits
	if c.staged.Load() {
		n = c.e.cfg.StagedCredits
	}
	n = l.enlarge(c, n)
	var err error
	for i := 0; i < n && err == nil; i++ {
		b, none := c.e.arena.Get(ctx, c.e.cfg.RecvSize, c.e.recvOwner)
		if none != nil {
			if l.rq != nil {
				l.mu.Lock()
				l.owned -= n - i
				l.mu.Unlock()
			}
			return fmt.Errorf("receive buffers: %w", none)
		}
		err = c.rq.add(b, creditor{})
	}
	if err == nil {
		err = c.rq.flush()
	}
	if err != nil && l.rq != nil {
		l.failAll(err) // receives of others may have been refused with them
	}
	return err
}

// enlarge takes note that c promises its peer n buffers more, and returns how many
// are to be posted for that: a shared queue may have some to spare.
func (l *lane) enlarge(c *Conn, n int) int {
	if l.rq == nil {
		return n
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.want += n
	c.wants += n
	n = max(l.want-l.owned, 0)
	l.owned += n
	return n
}

// hide makes completions of c's QP find nothing from here on: the device may give
// the number to another QP once this one is destroyed. It runs on the poller, so
// that no batch is being handled.
func (l *lane) hide(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns[c.qp.QPN()] == c {
		delete(l.conns, c.qp.QPN())
	}
}

// leave ends c's part in the lane: its QP is gone. waiting is how many of its
// buffers were given away and not yet replaced.
func (l *lane) leave(c *Conn, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.wants > 0 {
		l.want -= c.wants
		l.owned -= waiting
	}
}

// forgo takes note that a buffer of the SRQ will not come back.
func (l *lane) forgo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owned--
}

// drop takes a receive buffer that c, which may be nil, has no use for: it goes
// back to the SRQ if that would be short of it, else to the arena.
func (l *lane) drop(b buffer.RDMABuffer, c *Conn) {
	if l.rq == nil {
		b.Release()
		return
	}
	l.mu.Lock()
	keep := l.owned <= l.want
	if !keep {
		l.owned--
	}
	l.mu.Unlock()
	if !keep {
		b.Release()
		return
	}
	if err := l.rq.add(b, creditor{}); err != nil {
		l.failAll(err)
	}
}

// orphaned posts again the shared receives that a QP had taken and whose
// completions went with it.
func (l *lane) orphaned(os []verbs.Orphan) {
	if l.rq == nil {
		return
	}
	for _, o := range os {
		if o.Recv {
			l.drop(l.rq.take(o.WRID), nil)
		}
	}
	if err := l.rq.flush(); err != nil {
		l.failAll(err)
	}
}
