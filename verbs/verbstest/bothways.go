package verbstest

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// talker runs SENDs, WRITEs and READs from one end to the other while the other
// end does the same, each end with one goroutine for its send queue and one for
// its receive queue.
type talker struct {
	x          *end
	src        *memory // what we send and write from: patterns by message
	sink       *memory // READs land here
	inbox      *memory // receives land here
	window     *memory // the peer writes and reads here
	peerWindow *memory
	n, rounds  int
	credits    chan struct{} // one for each receive that is posted at the peer
	grant      chan struct{} // the peer's credits
}

const talkDepth = 8

// bothWays has both ends send, write and read at the same time.
func bothWays(e *env) {
	const n = 70_001
	p := e.pair(pairOpts{depth: 4 * talkDepth})
	rounds := e.short(200)
	mk := func(x *end) *talker {
		return &talker{
			x: x, n: n, rounds: rounds, src: x.mem(talkDepth*n, 0), sink: x.sink(n), inbox: x.mem(talkDepth*n, accLocal),
			window: x.mem(2*n, accRemote), credits: make(chan struct{}, talkDepth),
		}
	}
	a, b := mk(p.a), mk(p.b)
	a.peerWindow, b.peerWindow = b.window, a.window
	a.grant, b.grant = b.credits, a.credits
	fill(a.window.b[n:], 17)
	fill(b.window.b[n:], 17)
	g, ctx := errgroup.WithContext(e.ctx)
	for _, t := range []*talker{a, b} {
		require.NoError(e, t.postRecvs())
		g.Go(func() error { return t.send(ctx) })
		g.Go(func() error { return t.recv(ctx) })
	}
	require.NoError(e, g.Wait())
}

func (t *talker) postRecvs() error {
	for i := range talkDepth {
		if err := t.postRecv(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

func (t *talker) postRecv(i uint64) error {
	_, err := t.x.qp.PostRecv([]verbs.RecvWR{{WRID: i, SGEs: []verbs.SGE{t.inbox.sge(int(i%talkDepth)*t.n, t.n)}}})
	t.grant <- struct{}{} // has room for every receive
	return err
}

// length of message i; the first is empty.
func (t *talker) length(i int) int { return i * 7919 % t.n }

// send does a WRITE, a READ and a SEND per round, and takes a credit for the
// SEND: a message without a receive ends the connection on iWARP.
func (t *talker) send(ctx context.Context) error {
	for i := range t.rounds {
		select {
		case <-t.credits:
		case <-ctx.Done():
			return fmt.Errorf("%s: no credit for message %d: %w", t.x.name, i, ctx.Err())
		}
		k, n := i%talkDepth, t.length(i)
		src := t.src.b[k*t.n : k*t.n+n]
		fill(src, uint64(i))
		wrs := []verbs.SendWR{
			t.peerWindow.to(verbs.SendWR{WRID: 1, Opcode: driver.OpWrite, SGEs: []verbs.SGE{t.src.sge(k*t.n, n)}}, 0),
			t.peerWindow.to(signaled(2, driver.OpRead, t.sink.sge(0, n)), t.n),
			signaled(3, driver.OpSend, t.src.sge(k*t.n, n)),
		}
		if _, err := t.x.qp.PostSend(wrs); err != nil {
			return fmt.Errorf("%s: post %d: %w", t.x.name, i, err)
		}
		for seen := 0; seen < 2; seen++ {
			wc, err := t.x.sq.wait(ctx)
			if err != nil {
				return fmt.Errorf("%s: send completion %d: %w", t.x.name, i, err)
			}
			if wc.Status != driver.StatusSuccess {
				return fmt.Errorf("%s: request %d of round %d: %v", t.x.name, wc.WRID, i, wc.Status)
			}
			if wc.WRID == 2 {
				if err := isPattern(t.sink.b[:n], 17); err != nil {
					return fmt.Errorf("%s: READ %d: %w", t.x.name, i, err)
				}
			}
		}
	}
	return nil
}

func (t *talker) recv(ctx context.Context) error {
	for i := range t.rounds {
		wc, err := t.x.rq.wait(ctx)
		if err != nil {
			return fmt.Errorf("%s: receive %d: %w", t.x.name, i, err)
		}
		if err := good(wc, uint64(i), driver.OpRecv); err != nil {
			return fmt.Errorf("%s: %w", t.x.name, err)
		}
		n := t.length(i)
		if err := want(int(wc.ByteLen) == n, "%s: message %d has %d bytes, want %d", t.x.name, i, wc.ByteLen, n); err != nil {
			return err
		}
		k := i % talkDepth
		if err := isPattern(t.inbox.b[k*t.n:k*t.n+n], uint64(i)); err != nil {
			return fmt.Errorf("%s: message %d: %w", t.x.name, i, err)
		}
		if i+talkDepth < t.rounds {
			if err := t.postRecv(uint64(i + talkDepth)); err != nil {
				return err
			}
		}
	}
	return nil
}
