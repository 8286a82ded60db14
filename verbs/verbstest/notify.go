package verbstest

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var notifyTests = []subtest{
	{"NoLostWakeUps", noLostWakeUps},
	{"PollArm", pollArm},
	{"OneEventPerArming", oneEventPerArming},
	{"ChannelOfManyCQs", channelOfManyCQs},
	{"ChannelWakeAndClose", channelWakeAndClose},
	{"SolicitedEvents", solicitedEvents},
	{"SolicitedForms", solicitedFormsOnly},
	{"FailureIsSolicited", failureIsSolicited},
	{"Upcalls", upcalls},
}

// noLostWakeUps plays ping-pong with both ends asleep between two messages:
// a wake-up that is lost hangs it.
func noLostWakeUps(e *env) {
	p := e.pair(pairOpts{})
	rounds := uint64(e.short(3000))
	g, ctx := errgroup.WithContext(e.ctx)
	play := func(x *end, first bool) func() error {
		x.postRecv(verbs.RecvWR{WRID: 0})
		return func() error {
			for i := range rounds {
				if !first || i > 0 {
					wc, err := x.rq.wait(ctx)
					if err != nil {
						return fmt.Errorf("%s: round %d: %w", x.name, i, err)
					}
					if wc.Status != driver.StatusSuccess {
						return fmt.Errorf("%s: round %d: %v", x.name, i, wc.Status)
					}
					if _, err := x.qp.PostRecv([]verbs.RecvWR{{WRID: i}}); err != nil {
						return err
					}
				}
				if _, err := x.qp.PostSend([]verbs.SendWR{signaled(i, driver.OpSend)}); err != nil {
					return err
				}
				wc, err := x.sq.wait(ctx)
				if err != nil {
					return fmt.Errorf("%s: send %d: %w", x.name, i, err)
				}
				if err := good(wc, i, driver.OpSend); err != nil {
					return err
				}
			}
			return nil
		}
	}
	// Both post their receive before either sends.
	one, two := play(p.a, true), play(p.b, false)
	g.Go(one)
	g.Go(two)
	require.NoError(e, g.Wait())
}

// oneEventPerArming checks that an armed CQ announces once, however many
// completions come, and that an unarmed one does not announce.
func oneEventPerArming(e *env) {
	p := e.pair(pairOpts{})
	send := func(n int) {
		for i := range n {
			p.b.postRecv(verbs.RecvWR{WRID: uint64(i)})
			p.a.post(signaled(uint64(i), driver.OpSend))
		}
	}
	drain := func(n int) {
		for i := range n {
			p.b.rq.spun(uint64(i), driver.OpRecv)
		}
	}
	for range e.short(20) {
		send(4)
		drain(4) // polling without arming
		p.b.rq.quiet()
		require.NoError(e, p.b.rq.cq.ReqNotify(false))
		require.NoError(e, p.b.rq.cq.ReqNotify(false)) // twice is once
		send(4)
		cq, err := p.b.rq.ch.Wait(e.ctx)
		require.NoError(e, err)
		require.Equal(e, p.b.rq.cq, cq)
		drain(4)
		p.b.rq.quiet()
		p.a.sq.take(8)
	}
}

// pollArm checks that PollArm arms an empty CQ, gives what is in one that is not,
// and leaves that unarmed.
func pollArm(e *env) {
	p := e.pair(pairOpts{})
	send := func(id uint64) {
		p.b.postRecv(verbs.RecvWR{WRID: id})
		p.a.post(signaled(id, driver.OpSend))
		p.a.sq.good(id, driver.OpSend)
	}
	wcs := make([]verbs.WC, 8)
	for id := range uint64(e.short(20)) {
		n, armed, err := p.b.rq.cq.PollArm(wcs)
		require.NoError(e, err)
		require.Zero(e, n)
		require.True(e, armed)
		send(id)
		cq, err := p.b.rq.ch.Wait(e.ctx)
		require.NoError(e, err)
		require.Equal(e, p.b.rq.cq, cq)
		n, armed, err = p.b.rq.cq.PollArm(wcs)
		require.NoError(e, err)
		require.Equal(e, 1, n)
		require.False(e, armed)
		require.NoError(e, good(wcs[0], id, driver.OpRecv))
		send(id)
		p.b.rq.spun(id, driver.OpRecv)
		p.b.rq.quiet()
	}
}

// channelOfManyCQs has CQs share a channel: Wait names the one that has
// something.
func channelOfManyCQs(e *env) {
	const n = 5
	x := e.end("b", e.acceptor(), pairOpts{})
	ch, err := x.dev.CreateCompChannel()
	require.NoError(e, err)
	e.later(phaseChannel, ch.Close)
	var pairs []pair
	byCQ := map[*verbs.CQ]int{}
	for i := range n {
		cq, err := x.dev.CreateCQ(verbs.CQConfig{Depth: 16, Channel: ch})
		require.NoError(e, err)
		e.later(phaseCQ, cq.Close)
		require.Equal(e, ch, cq.Channel())
		byCQ[cq] = i
		p := e.pair(pairOpts{with: func(x *end, c *verbs.QPConfig) {
			if x.name == "b" {
				x.rq = &queue{e: e, cq: cq, ch: ch}
				c.RecvCQ = cq
			}
		}})
		pairs = append(pairs, p)
	}
	for i := range uint64(e.short(200)) {
		p := pairs[i%n]
		for _, p := range pairs {
			require.NoError(e, p.b.rq.cq.ReqNotify(false))
		}
		p.b.postRecv(verbs.RecvWR{WRID: i})
		p.a.post(signaled(i, driver.OpSend))
		cq, err := ch.Wait(e.ctx)
		require.NoError(e, err)
		require.NotNil(e, cq)
		require.EqualValues(e, i%n, byCQ[cq])
		wc, ok, err := p.b.rq.poll()
		require.NoError(e, err)
		require.True(e, ok, "an event without a completion")
		require.NoError(e, good(wc, i, driver.OpRecv))
		p.a.sq.good(i, driver.OpSend)
	}
}

func channelWakeAndClose(e *env) {
	ch, err := e.dialer().CreateCompChannel()
	require.NoError(e, err)
	e.later(phaseChannel, ch.Close)
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err = ch.Wait(ctx)
	require.ErrorIs(e, err, context.Canceled)
	ctx, cancel = context.WithTimeout(e.ctx, 20e6)
	defer cancel()
	_, err = ch.Wait(ctx)
	require.ErrorIs(e, err, context.DeadlineExceeded)
	ch.Wake()
	cq, err := ch.Wait(e.ctx)
	require.NoError(e, err)
	require.Nil(e, cq)
	// Wakes come through whether Wait is already asleep or not.
	for range e.short(200) {
		woken := make(chan error, 1)
		go func() { _, err := ch.Wait(e.ctx); woken <- err }() // ends with the wake
		ch.Wake()
		require.NoError(e, <-woken)
	}
	closed := make(chan error, 1)
	go func() { _, err := ch.Wait(e.ctx); closed <- err }() // ends with the close
	require.NoError(e, ch.Close())
	require.ErrorIs(e, <-closed, verbs.ErrClosed)
	_, err = ch.Wait(e.ctx)
	require.ErrorIs(e, err, verbs.ErrClosed)
	ch.Wake()
	require.NoError(e, ch.Close())
}

// solicitedEvents arms for solicited completions only.
func solicitedEvents(e *env) {
	e.need(e.caps().Solicited, "the device does not tell solicited completions apart")
	p := e.pair(pairOpts{})
	receive := func(i uint64) {
		p.b.rq.spun(i, driver.OpRecv)
		p.a.sq.spun(i, driver.OpSend)
	}
	for i := range uint64(e.short(50)) {
		p.b.postRecv(verbs.RecvWR{WRID: 3 * i}, verbs.RecvWR{WRID: 3*i + 1}, verbs.RecvWR{WRID: 3*i + 2})
		require.NoError(e, p.b.rq.cq.ReqNotify(true))
		p.a.post(signaled(3*i, driver.OpSend))
		receive(3 * i)
		p.b.rq.quiet()
		wr := signaled(3*i+1, driver.OpSend)
		wr.Flags |= driver.SendSolicited
		p.a.post(wr)
		cq, err := p.b.rq.ch.Wait(e.ctx)
		require.NoError(e, err)
		require.Equal(e, p.b.rq.cq, cq)
		receive(3*i + 1)
		// Arming for all completions overrides arming for solicited ones.
		require.NoError(e, p.b.rq.cq.ReqNotify(true))
		require.NoError(e, p.b.rq.cq.ReqNotify(false))
		p.a.post(signaled(3*i+2, driver.OpSend))
		cq, err = p.b.rq.ch.Wait(e.ctx)
		require.NoError(e, err)
		require.Equal(e, p.b.rq.cq, cq)
		receive(3*i + 2)
	}
}

// solicitedForms are the messages that may be solicited, each with the opcode of
// its receive.
func (p pair) solicitedForms() map[verbs.Opcode]verbs.Opcode {
	forms := map[verbs.Opcode]verbs.Opcode{driver.OpSend: driver.OpRecv}
	if p.a.qp.Features().Imm {
		forms[driver.OpSendWithImm], forms[driver.OpWriteWithImm] = driver.OpRecv, driver.OpRecvWriteImm
	}
	return forms
}

// solicitedFormsOnly arms for solicited completions, and gets none for each form of
// message without the flag, and one with it.
func solicitedFormsOnly(e *env) {
	e.need(e.caps().Solicited, "the device does not tell solicited completions apart")
	p := e.pair(pairOpts{})
	src, dst := p.a.mem(8, 0), p.b.mem(8, accWrite)
	for op, recv := range p.solicitedForms() {
		for range e.short(20) {
			p.b.postRecv(verbs.RecvWR{WRID: 1}, verbs.RecvWR{WRID: 2})
			require.NoError(e, p.b.rq.cq.ReqNotify(true))
			wr := signaled(1, op)
			if op == driver.OpWriteWithImm {
				wr = dst.to(signaled(1, op, src.sge(0, 8)), 0)
			}
			p.a.post(wr)
			p.b.rq.spun(1, recv)
			p.a.sq.spun(1, op)
			p.b.rq.quiet()
			wr.WRID, wr.Flags = 2, wr.Flags|driver.SendSolicited
			p.a.post(wr)
			cq, err := p.b.rq.ch.Wait(e.ctx)
			require.NoError(e, err, "%v", op)
			require.Equal(e, p.b.rq.cq, cq)
			p.b.rq.spun(2, recv)
			p.a.sq.spun(2, op)
		}
	}
}

func failureIsSolicited(e *env) {
	p := e.pair(pairOpts{})
	p.b.postRecv(verbs.RecvWR{WRID: 1})
	require.NoError(e, p.b.rq.cq.ReqNotify(true))
	require.NoError(e, p.b.qp.SetError())
	cq, err := p.b.rq.ch.Wait(e.ctx)
	require.NoError(e, err)
	require.Equal(e, p.b.rq.cq, cq)
	require.Equal(e, driver.StatusWRFlushErr, p.b.rq.next().Status)
}
