package verbstest

import (
	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// What is wrong locally never reaches the device through the core: it is
// refused at post time and nothing changes. What the device makes of it is seen
// through the driver.

var localTests = []subtest{
	{"PostRefusals", postRefusals},
	{"RegistrationRefusals", registrationRefusals},
	{"CreationRefusals", creationRefusals},
	{"RawSendUnknownKey", rawSend(func(x *rawEnd) driver.SGE {
		s := x.mem(100, accLocal).sge(0, 100)
		s.LKey ^= 0x5a5a5a00
		return s
	})},
	{"RawSendStaleKey", rawSend(func(x *rawEnd) driver.SGE {
		m := x.mem(100, accLocal)
		s := m.sge(0, 100)
		x.dereg(m)
		return s
	})},
	{"RawSendPastEnd", rawSend(func(x *rawEnd) driver.SGE { return x.mem(100, accLocal).sge(1, 100) })},
	{"RawSendBeforeStart", rawSend(func(x *rawEnd) driver.SGE {
		s := x.mem(100, accLocal).sge(0, 50)
		s.Addr--
		return s
	})},
	{"RawSendOfOtherPD", rawSend(func(x *rawEnd) driver.SGE { return x.memIn(x.otherPD(), 100, accLocal).sge(0, 100) })},
	{"RawReceiveUnknownKey", rawRecv(func(x *rawEnd) driver.SGE {
		s := x.mem(100, accLocal).sge(0, 100)
		s.LKey ^= 0x5a5a5a00
		return s
	})},
	{"RawReceiveWithoutRight", rawRecv(func(x *rawEnd) driver.SGE { return x.mem(100, 0).sge(0, 100) })},
	{"RawReceivePastEnd", rawRecv(func(x *rawEnd) driver.SGE { return x.mem(100, accLocal).sge(1, 100) })},
	{"RawReceiveOfOtherPD", rawRecv(func(x *rawEnd) driver.SGE { return x.memIn(x.otherPD(), 100, accLocal).sge(0, 100) })},
	{"RawReadSinkWithoutRight", rawReadSink(func(x *rawEnd) driver.SGE { return x.mem(100, accRead).sge(0, 100) })},
	{"RawReadSinkPastEnd", rawReadSink(func(x *rawEnd) driver.SGE { return x.mem(100, accRemote).sge(1, 100) })},
	{"RawReadSinkUnknownKey", rawReadSink(func(x *rawEnd) driver.SGE {
		s := x.mem(100, accRemote).sge(0, 100)
		s.LKey ^= 0x5a5a5a00
		return s
	})},
	{"RawWrappingAddress", rawWrap},
	{"RawNonsense", rawNonsense},
}

// postRefusals posts everything that is wrong, one after the other, on one QP,
// which works as before in the end.
func postRefusals(e *env) {
	p := e.pair(pairOpts{})
	c := p.a.caps
	m, remote := p.a.mem(100, accLocal), p.b.mem(100, accRemote)
	readOnly := p.a.mem(100, 0)
	other := e.reg(e.allocPD(p.a.dev), 100, accLocal)
	gone := p.a.mem(100, accLocal)
	require.NoError(e, gone.mr.Deregister())
	foreign := p.b.mem(100, accLocal)
	over := make([]verbs.SGE, min(c.MaxSGE, 8)+1)
	for i := range over {
		over[i] = m.sge(0, 1)
	}
	send := func(s ...verbs.SGE) verbs.SendWR { return signaled(1, driver.OpSend, s...) }
	read := func(s ...verbs.SGE) verbs.SendWR { return remote.to(signaled(1, driver.OpRead, s...), 0) }
	inline := send(m.sge(0, 1))
	inline.Flags |= driver.SendInline
	for name, tt := range map[string]struct {
		wr  verbs.SendWR
		err error
	}{
		"past the end":                 {send(m.sge(1, 100)), verbs.ErrInvalid},
		"offset past the end":          {send(m.sge(101, 0)), verbs.ErrInvalid},
		"offset that overflows":        {send(verbs.SGE{MR: m.mr, Offset: ^uint64(0), Length: 2}), verbs.ErrInvalid},
		"remote address that wraps":    {verbs.SendWR{Opcode: driver.OpWrite, SGEs: []verbs.SGE{m.sge(0, 2)}, RemoteAddr: ^uint64(0), RKey: remote.mr.RKey()}, verbs.ErrInvalid},
		"no region":                    {send(verbs.SGE{Length: 1}), verbs.ErrInvalid},
		"region of another PD":         {send(other.sge(0, 1)), verbs.ErrInvalid},
		"region of another device":     {send(foreign.sge(0, 1)), verbs.ErrInvalid},
		"region that is gone":          {send(gone.sge(0, 1)), verbs.ErrClosed},
		"too many SGEs":                {send(over...), verbs.ErrInvalid},
		"READ into read-only memory":   {read(readOnly.sge(0, 1)), verbs.ErrInvalid},
		"inline on a QP that has none": {inline, verbs.ErrInvalid},
		"unknown operation":            {signaled(1, verbs.Opcode(77)), verbs.ErrInvalid},
		"operation of completions":     {signaled(1, driver.OpRecv), verbs.ErrInvalid},
		"a bind":                       {signaled(1, driver.OpBindMW), verbs.ErrInvalid},
		"unknown flag":                 {verbs.SendWR{Opcode: driver.OpSend, Flags: 1 << 7}, verbs.ErrInvalid},
	} {
		n, err := p.a.qp.PostSend([]verbs.SendWR{tt.wr})
		require.ErrorIs(e, err, tt.err, name)
		require.Zero(e, n, name)
		var op *verbs.OpError
		require.ErrorAs(e, err, &op, name)
		require.Equal(e, p.a.qp.QPN(), op.QPN, name)
	}
	if !c.Atomics {
		_, err := p.a.qp.PostSend([]verbs.SendWR{remote.to(signaled(1, driver.OpFetchAdd, m.sge(0, 8)), 0)})
		require.ErrorIs(e, err, verbs.ErrNotSupported)
	}
	for name, tt := range map[string]struct {
		s   verbs.SGE
		err error
	}{
		"read-only memory":         {readOnly.sge(0, 1), verbs.ErrInvalid},
		"past the end":             {m.sge(100, 1), verbs.ErrInvalid},
		"region of another PD":     {other.sge(0, 1), verbs.ErrInvalid},
		"region of another device": {foreign.sge(0, 1), verbs.ErrInvalid},
		"region that is gone":      {gone.sge(0, 1), verbs.ErrClosed},
		"no region":                {verbs.SGE{Length: 1}, verbs.ErrInvalid},
	} {
		n, err := p.a.qp.PostRecv([]verbs.RecvWR{{SGEs: []verbs.SGE{tt.s}}})
		require.ErrorIs(e, err, tt.err, name)
		require.Zero(e, n, name)
	}
	// A batch is accepted up to what is wrong.
	p.b.postRecv(verbs.RecvWR{WRID: 1}, verbs.RecvWR{WRID: 2})
	n, err := p.a.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend), send(m.sge(1, 100)), signaled(3, driver.OpSend)})
	require.ErrorIs(e, err, verbs.ErrInvalid)
	require.Equal(e, 1, n)
	n, err = p.a.qp.PostRecv([]verbs.RecvWR{{WRID: 5}, {WRID: 6, SGEs: []verbs.SGE{m.sge(1, 100)}}})
	require.ErrorIs(e, err, verbs.ErrInvalid)
	require.Equal(e, 1, n)
	p.a.sq.good(1, driver.OpSend)
	p.b.rq.good(1, driver.OpRecv)
	require.Zero(e, m.mr.InFlight())
	p.a.post(signaled(9, driver.OpSend))
	p.a.sq.good(9, driver.OpSend)
	p.b.rq.good(2, driver.OpRecv)
}

func registrationRefusals(e *env) {
	d := e.dialer()
	pd := e.allocPD(d)
	b := make([]byte, 100)
	for name, tt := range map[string]struct {
		b   []byte
		acc verbs.Access
	}{
		"nil":                               {nil, accLocal},
		"empty":                             {b[:0], accLocal},
		"remote write without local write":  {b, driver.AccessRemoteWrite},
		"remote atomic without local write": {b, driver.AccessRemoteAtomic | driver.AccessRemoteRead},
		"unknown right":                     {b, 1 << 30},
	} {
		mr, err := pd.RegMR(tt.b, tt.acc)
		require.ErrorIs(e, err, verbs.ErrInvalid, name)
		require.Nil(e, mr, name)
	}
	if !d.Caps().ODP {
		_, err := pd.RegMR(b, accLocal|driver.AccessOnDemand)
		require.ErrorIs(e, err, verbs.ErrNotSupported)
	}
	// All or nothing.
	mrs, err := pd.RegMRs(e.ctx, [][]byte{b, b[:50], nil, b}, accLocal)
	require.ErrorIs(e, err, verbs.ErrInvalid)
	require.Empty(e, mrs)
	require.Zero(e, d.Stats().MRs)
	mrs, err = pd.RegMRs(e.ctx, [][]byte{b, b[:50], b[50:]}, accLocal)
	require.NoError(e, err)
	require.Len(e, mrs, 3)
	require.Equal(e, 3, d.Stats().MRs)
	require.EqualValues(e, 200, d.Stats().BytesRegistered)
	for _, mr := range mrs {
		require.NoError(e, mr.Deregister())
		require.False(e, mr.Live())
		require.NoError(e, mr.Deregister(), "once more")
	}
	require.NoError(e, pd.Close())
	_, err = pd.RegMR(b, accLocal)
	require.ErrorIs(e, err, verbs.ErrClosed)
}

func creationRefusals(e *env) {
	d, d2 := e.dialer(), e.acceptor()
	c := d.Caps()
	pd := e.allocPD(d)
	cq, foreign := e.queue(d, 16).cq, e.queue(d2, 16).cq
	base := verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}
	for name, f := range map[string]func(c *verbs.QPConfig){
		"no CQ":                     func(c *verbs.QPConfig) { c.SendCQ = nil },
		"CQ of another device":      func(c *verbs.QPConfig) { c.SendCQ = foreign },
		"recv CQ of another device": func(c *verbs.QPConfig) { c.RecvCQ = foreign },
		"send SGEs":                 func(q *verbs.QPConfig) { q.MaxSendSGE = c.MaxSGE + 1 },
		"receive SGEs":              func(q *verbs.QPConfig) { q.MaxRecvSGE = c.MaxSGE + 1 },
		"inline":                    func(q *verbs.QPConfig) { q.MaxInline = c.MaxInline + 1 },
		"negative depth":            func(q *verbs.QPConfig) { q.MaxSendWR = -1 },
	} {
		q := base
		f(&q)
		qp, err := pd.CreateQP(q)
		require.Error(e, err, name)
		require.Nil(e, qp, name)
	}
	for name, f := range map[string]func(c *verbs.QPConfig){
		"send depth":    func(q *verbs.QPConfig) { q.MaxSendWR = c.MaxQPWR + 1 },
		"receive depth": func(q *verbs.QPConfig) { q.MaxRecvWR = c.MaxQPWR + 1 },
	} {
		q := base
		f(&q)
		_, err := pd.CreateQP(q)
		require.Error(e, err, name)
	}
	// The CQ has 16 entries: two QPs of 8 fill it, a third is refused, and
	// fits when one has gone.
	var qps []*verbs.QP
	free := cq.Free()
	require.GreaterOrEqual(e, free, 16)
	for cq.Free() >= 8 {
		qp, err := pd.CreateQP(base)
		require.NoError(e, err)
		e.later(phaseQP, func() error { _, err := qp.Close(); return err })
		qps = append(qps, qp)
	}
	_, err := pd.CreateQP(base)
	require.Error(e, err, "the CQ is full")
	_, err = qps[0].Close()
	require.NoError(e, err)
	qp, err := pd.CreateQP(base)
	require.NoError(e, err)
	e.later(phaseQP, func() error { _, err := qp.Close(); return err })
	_, err = d.CreateCQ(verbs.CQConfig{Depth: c.MaxCQE + 1})
	require.Error(e, err)
	_, err = d.CreateCQ(verbs.CQConfig{Depth: -1})
	require.ErrorIs(e, err, verbs.ErrInvalid)
	ch, err := d2.CreateCompChannel()
	require.NoError(e, err)
	e.later(phaseChannel, ch.Close)
	_, err = d.CreateCQ(verbs.CQConfig{Depth: 16, Channel: ch})
	require.ErrorIs(e, err, verbs.ErrInvalid, "a channel of another device")
	if c.SRQ {
		_, err = pd.CreateSRQ(verbs.SRQConfig{MaxWR: c.MaxSRQWR + 1})
		require.Error(e, err)
		_, err = pd.CreateSRQ(verbs.SRQConfig{MaxWR: 4, MaxSGE: c.MaxSRQSGE + 1})
		require.Error(e, err)
	} else {
		_, err = pd.CreateSRQ(verbs.SRQConfig{MaxWR: 4})
		require.ErrorIs(e, err, verbs.ErrNotSupported)
	}
	if !c.MW2 {
		_, err = pd.AllocMW()
		require.ErrorIs(e, err, verbs.ErrNotSupported)
	}
}
