package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func TestDeregisterNamesWhatIsInTheWay(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxRecvWR: withSRQ, MaxSendSGE: 3})
	r.send(verbs.SendWR{SGEs: []verbs.SGE{{MR: r.mr, Length: 1}, {MR: r.mr, Length: 1}, {MR: r.mr}}})
	_, err := r.srq.PostRecv([]verbs.RecvWR{{WRID: 3, SGEs: r.sge(8)}})
	require.NoError(t, err)
	w, err := r.pd.AllocMW()
	require.NoError(t, err)
	require.NoError(t, r.qp.BindMW(w, r.mr, 0, 8, verbs.AccessRemoteWrite, 1))

	var busy *verbs.BusyError
	require.ErrorAs(t, r.mr.Deregister(), &busy)
	require.Equal(t, map[uint32]int{r.qp.QPN(): 3}, busy.QPs, "two SGEs and the bind; the empty SGE is not for the device")
	require.Equal(t, 1, busy.SRQs)
	require.Equal(t, []verbs.Kind{verbs.KindMW}, kinds(busy.Children))
	require.Equal(t, 3, r.qp.References(r.mr))
	require.Equal(t, 1, r.srq.References(r.mr))
	require.Equal(t, 4, r.mr.InFlight())
	for _, res := range r.dev.Resources() {
		if res.Kind == verbs.KindMR {
			require.Equal(t, 4, res.Posted)
		}
	}

	r.send(verbs.SendWR{SGEs: r.sge(8)}) // a refusal closes nothing
	require.NoError(t, r.qp.SetError())
	require.NoError(t, w.Close(), "its bind is outstanding, but in ERR")
	r.poll()
	require.Equal(t, 1, r.mr.InFlight())
	r.lq.l.mu.Lock()
	r.lq.state = driver.QPStateErr
	r.lq.l.mu.Unlock()
	r.lq.receive(driver.WC{Status: driver.StatusWRFlushErr})
	require.Equal(t, []uint64{3}, wrids(r.poll()))
	require.NoError(t, r.mr.Deregister())
}

// An inline request holds no memory: the device has copied it.
func TestInlineHoldsNothing(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxInline: 16})
	r.send(verbs.SendWR{Flags: verbs.SendInline, SGEs: r.sge(16)})
	require.Equal(t, 1, r.lq.sges)
	require.Zero(t, r.mr.InFlight())
	require.NoError(t, r.mr.Deregister())
}

func TestDeregisterWait(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	r.send(verbs.SendWR{WRID: 1, Flags: verbs.SendSignaled, SGEs: r.sge(8)})

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.mr.DeregisterWait(ctx) }()
	refused := func() bool {
		n, err := r.qp.PostSend([]verbs.SendWR{{WRID: 2, SGEs: r.sge(8)}})
		if n == 1 {
			require.NoError(t, err)
			return false
		}
		require.ErrorIs(t, err, verbs.ErrClosed)
		return true
	}
	require.Eventually(t, refused, time.Minute, time.Millisecond, "posts are refused while it waits")
	cancel()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.False(t, refused(), "and allowed again")

	go func() { done <- r.mr.DeregisterWait(context.Background()) }()
	require.Eventually(t, refused, time.Minute, time.Millisecond)
	require.NoError(t, r.qp.SetError())
	for len(r.poll()) > 0 {
	}
	require.NoError(t, <-done)
	require.False(t, r.mr.Live())
}

func TestRevoke(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	key, err := r.mr.Scope(r.qp, 0, 10, verbs.AccessRemoteRead)
	require.NoError(t, err)
	w, err := r.pd.AllocMW()
	require.NoError(t, err)
	require.NoError(t, r.qp.BindMW(w, r.mr, 0, 8, verbs.AccessRemoteRead, 1))
	r.lq.finish(0)
	r.send(verbs.SendWR{WRID: 2, SGEs: r.sge(8)}) // never completes
	require.Equal(t, []uint64{1}, wrids(r.poll()))

	expired, cancel := context.WithCancel(context.Background())
	cancel()
	err = r.mr.Revoke(expired, false)
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.False(t, key.Live(), "remote access is withdrawn")
	require.False(t, w.Bound())
	require.True(t, r.mr.Live())
	require.Equal(t, verbs.QPStateRTS, r.qp.State())

	done := make(chan error)
	go func() { done <- r.mr.Revoke(expired, true) }()
	require.Eventually(t, func() bool { return r.qp.State() == verbs.QPStateErr }, time.Minute, time.Millisecond)
	require.Equal(t, []uint64{2}, wrids(r.poll()))
	require.NoError(t, <-done)
	require.NoError(t, key.Deregister())
	require.NoError(t, w.Close())
}

// Where deregistration is no barrier, memory that peers may have been given a
// key of is kept until the QPs of its PD are gone.
func TestDeregisterWithoutBarrier(t *testing.T) {
	r := newRig(t, func(c *driver.Caps) { c.DeregBarrier = false }, verbs.Config{}, verbs.QPConfig{})
	local, err := r.pd.RegMR(make([]byte, 8), verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, local.Deregister(), "no peer can reach it")
	idle, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq})
	require.NoError(t, err)

	var busy *verbs.BusyError
	require.ErrorAs(t, r.mr.Deregister(), &busy)
	require.Equal(t, []verbs.Kind{verbs.KindQP}, kinds(busy.Children))
	require.Equal(t, r.qp.QPN(), busy.Children[0].QPN)
	require.NoError(t, r.qp.SetError())
	require.ErrorIs(t, r.mr.Deregister(), verbs.ErrBusy)

	done := make(chan error)
	go func() { done <- r.mr.DeregisterWait(context.Background()) }()
	_, err = r.qp.Close()
	require.NoError(t, err)
	require.NoError(t, <-done, "a QP that was never connected is not in the way")
	_, err = idle.Close()
	require.NoError(t, err)
}

func TestScope(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	readOnly, err := r.pd.RegMR(make([]byte, 64), 0)
	require.NoError(t, err)
	other, err := r.dev.AllocPD()
	require.NoError(t, err)
	foreign, err := other.RegMR(make([]byte, 64), 0)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		m      *verbs.MR
		off, n uint64
		acc    verbs.Access
	}{
		"empty":        {r.mr, 0, 0, verbs.AccessRemoteRead},
		"outside":      {r.mr, 4096, 1, verbs.AccessRemoteRead},
		"wraps":        {r.mr, 1, ^uint64(0), verbs.AccessRemoteRead},
		"no right":     {r.mr, 0, 1, 0},
		"local right":  {r.mr, 0, 1, verbs.AccessLocalWrite},
		"not writable": {readOnly, 0, 1, verbs.AccessRemoteWrite},
		"other PD":     {foreign, 0, 1, verbs.AccessRemoteRead},
	} {
		_, err := c.m.Scope(r.qp, c.off, c.n, c.acc)
		require.ErrorIs(t, err, verbs.ErrInvalid, name)
	}
	key, err := readOnly.Scope(r.qp, 8, 16, verbs.AccessRemoteRead)
	require.NoError(t, err)
	require.Equal(t, readOnly.Addr()+8, key.Addr())
	require.EqualValues(t, 16, key.Length())
	_, err = key.Scope(r.qp, 0, 1, verbs.AccessRemoteRead)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorIs(t, readOnly.ScopeInto(key, r.qp, 0, 1, verbs.AccessRemoteRead), verbs.ErrInvalid, "live")
	require.NoError(t, key.DeregisterWait(context.Background()))
	require.NoError(t, r.mr.ScopeInto(key, r.qp, 0, 1, verbs.AccessRemoteRead), "storage is used again")
	require.ErrorIs(t, r.mr.Deregister(), verbs.ErrBusy)
	for _, m := range []*verbs.MR{key, readOnly, foreign} {
		require.NoError(t, m.Deregister())
	}
	require.NoError(t, other.Close())
}

// guardQP checks, as a device could not, that no region goes while a request
// names it.
type guardPD struct {
	driver.PD
	g *guard
}

type guard struct {
	*loop
	mu    sync.Mutex
	live  map[uint32]bool
	inUse map[uint32]int
	bad   int
}

func (g *guard) AllocPD() (driver.PD, error) {
	pd, err := g.loop.AllocPD()
	return &guardPD{pd, g}, err
}

func (p *guardPD) RegMR(mem []byte, acc driver.Access) (driver.MR, error) {
	m, err := p.PD.RegMR(mem, acc)
	p.g.mu.Lock()
	p.g.live[m.LKey()] = true
	p.g.mu.Unlock()
	return &guardMR{m, p.g}, err
}

func (p *guardPD) CreateQP(a driver.QPAttr) (driver.QP, error) {
	q, err := p.PD.CreateQP(a)
	return &guardQP{q.(*loopQP), p.g}, err
}

type guardMR struct {
	driver.MR
	g *guard
}

func (m *guardMR) Deregister() error {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	if m.g.inUse[m.LKey()] > 0 {
		m.g.bad++
	}
	m.g.live[m.LKey()] = false
	return nil
}

type guardQP struct {
	*loopQP
	g *guard
}

// PostSend executes at once.
func (q *guardQP) PostSend(wrs []driver.SendWR) (int, error) {
	for i := range wrs {
		lkey := wrs[i].SGEs[0].LKey
		q.g.mu.Lock()
		q.g.inUse[lkey]++
		if !q.g.live[lkey] {
			q.g.bad++
		}
		q.g.mu.Unlock()
		_, _ = q.loopQP.PostSend(wrs[i : i+1])
		q.g.mu.Lock()
		q.g.inUse[lkey]--
		q.g.mu.Unlock()
		q.loopQP.finish(0)
	}
	return len(wrs), nil
}

// Many goroutines post from regions that others deregister: no post is refused
// without a reason, no region goes while it is in use, nothing deadlocks.
func TestPostAgainstDeregister(t *testing.T) {
	g := &guard{loop: newLoop(nil), live: map[uint32]bool{}, inUse: map[uint32]int{}}
	dev, err := verbs.NewDevice(g, verbs.Config{})
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 4096})
	require.NoError(t, err)

	const nqp, nmr, rounds = 3, 4, 3000
	var mu sync.Mutex
	mrs := make([]*verbs.MR, nmr)
	for i := range mrs {
		mrs[i], err = pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite)
		require.NoError(t, err)
	}
	var posters, others sync.WaitGroup
	stop := make(chan struct{})
	var qps []*verbs.QP
	for range nqp {
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 16})
		require.NoError(t, err)
		_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
		require.NoError(t, err)
		qps = append(qps, qp)
		posters.Go(func() {
			for i := range rounds {
				mu.Lock()
				m := mrs[i%nmr]
				mu.Unlock()
				_, err := qp.PostSend([]verbs.SendWR{{Flags: verbs.SendSignaled, SGEs: []verbs.SGE{{MR: m, Length: 8}}}})
				if errors.Is(err, verbs.ErrClosed) {
					require.NoError(t, m.Deregister(), "refused, so it is going")
				} else if err != nil {
					require.ErrorIs(t, err, verbs.ErrQueueFull)
				}
			}
		})
	}
	others.Go(func() {
		var wcs [16]verbs.WC
		for {
			_, err := cq.Poll(wcs[:])
			require.NoError(t, err)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for i := range nmr {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				m := mrs[i]
				mu.Unlock()
				switch err := m.Deregister(); {
				case err == nil:
					m, err = pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite)
					require.NoError(t, err)
					mu.Lock()
					mrs[i] = m
					mu.Unlock()
				default:
					require.ErrorIs(t, err, verbs.ErrBusy)
				}
			}
		})
	}
	posters.Wait()
	close(stop)
	others.Wait()
	require.Zero(t, g.bad)
	require.NoError(t, cq.Drain(context.Background(), nil))
	for _, q := range qps {
		orphans, err := q.Close()
		require.NoError(t, err)
		require.Empty(t, orphans)
	}
	for _, m := range mrs {
		require.NoError(t, m.Deregister())
	}
	require.NoError(t, cq.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, dev.Close())
}

// Busy is what Deregister would refuse with: per queue what is posted, in which
// state the QP is, and which CQ has to be polled.
func TestBusyIsTheChecklist(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxRecvSGE: 2})
	require.Nil(t, r.mr.Busy())
	r.send(verbs.SendWR{SGEs: r.sge(1)}, verbs.SendWR{SGEs: r.sge(1)})
	_, err := r.qp.PostRecv([]verbs.RecvWR{{WRID: 3, SGEs: r.sge(8)}})
	require.NoError(t, err)
	busy := r.mr.Busy()
	require.Len(t, busy.Uses, 1)
	u := busy.Uses[0]
	require.Equal(t, 2, u.Send)
	require.Equal(t, 1, u.Recv)
	require.Equal(t, verbs.QPStateRTS, u.State)
	var cq, qp uint64
	for _, res := range r.dev.Resources() {
		switch res.Kind {
		case verbs.KindCQ:
			cq = res.ID
		case verbs.KindQP:
			qp = res.ID
		}
	}
	require.Equal(t, cq, u.SendCQ)
	require.Equal(t, cq, u.RecvCQ)
	require.Equal(t, qp, u.ID)
	require.ErrorContains(t, busy, fmt.Sprintf("2 sends and 1 receives on QP %d (RTS): poll CQ #%d; receives that no message uses go with SetError or Close", r.qp.QPN(), cq))
	require.NoError(t, r.qp.SetError())
	require.ErrorContains(t, r.mr.Busy(), "they are flushed")
	r.poll()
	_, err = r.qp.Close()
	require.NoError(t, err)
	require.Nil(t, r.mr.Busy())
	require.NoError(t, r.mr.Deregister())
	require.Nil(t, r.mr.Busy())
}

// While a region is being revoked nobody makes keys of it, or they would be in
// the way for ever.
func TestNoKeysOfARegionBeingRevoked(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	r.send(verbs.SendWR{WRID: 1, Flags: verbs.SendSignaled, SGEs: r.sge(8)})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error)
	go func() { done <- r.mr.Revoke(ctx, false) }() // ends when the request is polled
	require.Eventually(t, func() bool {
		key, err := r.mr.Scope(r.qp, 0, 8, verbs.AccessRemoteRead)
		if err == nil {
			require.NoError(t, key.Deregister())
			return false
		}
		require.ErrorIs(t, err, verbs.ErrClosed)
		return true
	}, time.Minute, time.Millisecond)
	var keys sync.WaitGroup
	for range 4 {
		keys.Go(func() {
			for r.mr.Live() { // ends when the region is gone
				if key, err := r.mr.Scope(r.qp, 0, 8, verbs.AccessRemoteRead); err == nil {
					_ = key.Deregister()
				}
			}
		})
	}
	r.lq.finish(0)
	require.Equal(t, []uint64{1}, wrids(r.poll()))
	require.NoError(t, <-done)
	keys.Wait()
}

// Revoke ends what hangs on the region, and nothing that was used again for another
// region by the time that it gets there.
func TestRevokeLeavesOthers(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	reg := func() *verbs.MR {
		m, err := r.pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessMWBind)
		require.NoError(t, err)
		return m
	}
	m, other := reg(), reg()
	first, err := m.Scope(r.qp, 0, 8, verbs.AccessRemoteWrite)
	require.NoError(t, err)
	second, err := m.Scope(r.qp, 8, 8, verbs.AccessRemoteWrite)
	require.NoError(t, err)
	w, err := r.pd.AllocMW()
	require.NoError(t, err)
	bind := func(m *verbs.MR) {
		require.NoError(t, r.qp.BindMW(w, m, 0, 8, verbs.AccessRemoteWrite, 1))
		r.lq.finish(0)
		require.Len(t, r.poll(), 1)
	}
	bind(m)

	block := make(chan struct{})
	r.l.mu.Lock()
	r.l.block, r.l.destroy = block, 0
	r.l.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- m.Revoke(context.Background(), false) }()
	for inside := false; !inside; runtime.Gosched() { // in the destructor of the first key
		r.l.mu.Lock()
		if inside = r.l.destroy == 1; inside {
			r.l.block = nil
		}
		r.l.mu.Unlock()
	}
	require.NoError(t, second.Deregister())
	require.NoError(t, other.ScopeInto(second, r.qp, 0, 8, verbs.AccessRemoteWrite))
	r.send(verbs.SendWR{Opcode: verbs.OpLocalInvalidate, InvalidateRKey: w.RKey()})
	r.lq.finish(0)
	require.Empty(t, r.poll())
	bind(other)
	close(block)
	require.NoError(t, <-done)

	require.False(t, m.Live())
	require.False(t, first.Live())
	require.True(t, second.Live())
	require.True(t, w.Bound())
	require.NoError(t, second.Deregister())
	require.NoError(t, w.Close())
	require.NoError(t, other.Deregister())
}
