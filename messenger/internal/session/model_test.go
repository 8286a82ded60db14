package session

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The model: two ends, what each has been given to send and what each has
// delivered, and transports between them that lose what is on its way when they
// are cut, which the two ends notice at different times. Whatever happens in
// whatever order, what is delivered is what was given, once and in order; and
// when the network is left in peace all of it is.

// frame is what travels: one of the fields.
type frame struct {
	opening *Incoming
	answer  *Answer
	ident   uint64 // SERVER_IDENT's cookie, with gs
	gs      uint64
	resumed *uint64 // SESSION_RECONNECT_OK
	msg     *kept
	ack     uint64 // with msg, or alone
}

// kept is a message: its place in the session, and what the user gave.
type kept struct{ seq, n uint64 }

// pipe is a transport that node client has opened.
type pipe struct {
	id     int
	client int
	cut    bool       // at once, for both
	left   [2]bool    // a node has closed it: what it has sent still arrives
	to     [2][]frame // on the way to each node
}

// node is one end, with the queues that a messenger keeps for a session.
type node struct {
	s                    Session
	i                    int
	link, attempt, claim *pipe
	queue                []uint64 // given, not sent
	sent, replay         []kept
	given, delivered     uint64
	gs                   uint64
}

type world struct {
	t     *rapid.T
	n     [2]*node
	pipes []*pipe
	last  int
	now   time.Time
}

func newWorld(t *rapid.T, p [2]Policy) *world {
	w := &world{t: t}
	for i := range w.n {
		w.n[i] = &node{i: i, gs: uint64(100 * i), s: Session{Policy: p[i], Dialable: true, State: Standby,
			BackoffMin: time.Second, BackoffMax: 10 * time.Second}}
	}
	return w
}

func (n *node) pending() bool { return len(n.queue)+len(n.replay) > 0 }

// give is a Send by the user.
func (w *world) give(n *node) {
	n.given++
	n.queue = append(n.queue, n.given)
	n.s.Wake()
}

// dial begins an attempt, where the session wants one.
func (w *world) dial(n *node) {
	if n.s.State != Connecting || n.attempt != nil || n.claim != nil {
		return
	}
	w.last++
	n.gs++
	n.attempt = &pipe{id: w.last, client: n.i}
	w.pipes = append(w.pipes, n.attempt)
	w.begin(n)
}

func (w *world) begin(n *node) {
	o := n.s.Begin(n.gs, uint64(1000+w.last))
	w.put(n.attempt, 1-n.i, frame{opening: &Incoming{Opening: o, PeerFirst: n.i == 0}})
}

func (w *world) put(p *pipe, to int, f frame) {
	if !p.cut && !p.left[to] {
		p.to[to] = append(p.to[to], f)
	}
}

// transmit sends what is next on the open transport.
func (w *world) transmit(n *node) {
	if n.link == nil {
		return
	}
	var k kept
	var ack uint64
	switch {
	case len(n.replay) > 0:
		k, n.replay = n.replay[0], n.replay[1:]
		ack = n.s.Resend()
	case len(n.queue) > 0:
		k.n, n.queue = n.queue[0], n.queue[1:]
		k.seq, ack = n.s.Send()
	default:
		return
	}
	n.sent = append(n.sent, k)
	w.put(n.link, 1-n.i, frame{msg: &k, ack: ack})
}

// tellAck sends an ACK of its own.
func (w *world) tellAck(n *node) {
	if n.link == nil {
		return
	}
	if a := n.s.Ack(); a != 0 {
		w.put(n.link, 1-n.i, frame{ack: a})
	}
}

func (n *node) forget() {
	drop := func(k kept) bool { return k.seq <= n.s.Acked }
	n.sent, n.replay = slices.DeleteFunc(n.sent, drop), slices.DeleteFunc(n.replay, drop)
}

func (n *node) requeue() {
	n.replay = append(n.sent, n.replay...)
	n.sent = nil
}

// lost is what a node does that notices the end of p.
func (w *world) lost(n *node, p *pipe) {
	switch p {
	case n.link:
		n.link = nil
	case n.claim:
		n.claim = nil
	case n.attempt:
		n.attempt = nil
	default:
		return
	}
	n.requeue()
	n.s.Fault(w.now, n.pending())
}

// close ends p at both ends; the other one will notice.
func (w *world) close(p *pipe) {
	p.cut = true
	p.to = [2][]frame{}
}

// leave has n close p. The other one will notice when all has arrived.
func (w *world) leave(n *node, p *pipe) {
	p.left[n.i] = true
	p.to[n.i] = nil
}

// notice has a node see that one of its transports has ended.
func (w *world) notice(n *node) {
	for _, p := range []*pipe{n.link, n.attempt, n.claim} {
		if p != nil && (p.cut || (p.left[1-n.i] && len(p.to[n.i]) == 0)) {
			w.lost(n, p)
		}
	}
}

// arrive handles the next frame of p to n.
func (w *world) arrive(n *node, p *pipe) {
	if p.cut || len(p.to[n.i]) == 0 || p == n.claim {
		return
	}
	f := p.to[n.i][0]
	p.to[n.i] = p.to[n.i][1:]
	switch {
	case f.opening != nil:
		w.opening(n, p, *f.opening)
	case p == n.attempt:
		w.answered(n, p, f)
	case p == n.link && f.msg != nil:
		if n.s.Receive(f.msg.seq, f.ack) != Duplicate {
			n.delivered++
			require.Equal(w.t, n.delivered, f.msg.n, "node %d got a message out of order, or twice", n.i)
		}
		n.forget()
	case p == n.link:
		n.s.Acknowledged(f.ack)
		n.forget()
	}
}

// opening is the server's side of a handshake.
func (w *world) opening(n *node, p *pipe, in Incoming) {
	a := n.s.Policy.Answer(&n.s, in)
	switch a.Verdict {
	case Take:
		require.False(w.t, a.Lost, "nobody has lost the session: %+v, %+v", n.s, in)
		for _, old := range []*pipe{n.link, n.attempt, n.claim} {
			if old != nil {
				w.leave(n, old)
			}
		}
		n.link, n.attempt, n.claim = nil, nil, nil
		n.requeue()
		n.s.Take(in, uint64(2000+p.id))
		n.forget()
		n.claim = p
		if in.Reconnect {
			seq := n.s.InSeq
			w.put(p, 1-n.i, frame{resumed: &seq})
		} else {
			n.gs++
			w.put(p, 1-n.i, frame{ident: n.s.ServerCookie, gs: n.gs})
		}
	case Drop:
		w.leave(n, p)
	case SendWait:
		n.s.Wake()
		w.put(p, 1-n.i, frame{answer: &a})
	default:
		require.False(w.t, a.Verdict == SendReset && a.Full, "nobody has lost the session: %+v, %+v", n.s, in)
		w.put(p, 1-n.i, frame{answer: &a})
	}
}

// takenIn is the server's side once more, when it knows that its answer is on the
// way: any time later.
func (w *world) takenIn(n *node) {
	if n.claim != nil {
		n.s.TakenIn()
		n.link, n.claim = n.claim, nil
	}
}

// answered is the client's.
func (w *world) answered(n *node, p *pipe, f frame) {
	switch {
	case f.resumed != nil:
		require.NoError(w.t, n.s.ReconnectOK(*f.resumed))
		n.forget()
		n.link, n.attempt = p, nil
	case f.ident != 0:
		n.s.ServerIdent(f.ident, f.gs, false)
		n.link, n.attempt = p, nil
	case f.answer.Verdict == SendWait:
		n.s.LostRace()
		w.leave(n, p)
		w.lost(n, p)
	case f.answer.Verdict == SendReset:
		require.False(w.t, n.s.SessionReset(f.answer.Full))
		w.begin(n)
	case f.answer.Verdict == SendRetry:
		require.NoError(w.t, n.s.Retry(f.answer.Seq))
		w.begin(n)
	case f.answer.Verdict == SendRetryGlobal:
		require.NoError(w.t, n.s.RetryGlobal(f.answer.Seq, n.gs))
		n.gs++
		w.begin(n)
	default:
		w.t.Fatalf("unexpected %+v", f)
	}
}

// peace lets everything happen but cuts, until nothing is left to do.
func (w *world) peace() {
	for round := range 1000 {
		for _, n := range w.n {
			w.notice(n)
			w.takenIn(n)
			w.dial(n)
			w.transmit(n)
			w.tellAck(n)
			for _, p := range w.pipes {
				for !p.cut && len(p.to[n.i]) > 0 {
					w.takenIn(n)
					w.arrive(n, p)
				}
			}
		}
		a, b := w.n[0], w.n[1]
		if a.delivered == b.given && b.delivered == a.given && len(a.sent)+len(b.sent)+len(a.replay)+len(b.replay) == 0 {
			return
		}
		if round == 999 {
			w.t.Fatalf("no end: %+v\n%+v", *a, *b)
		}
	}
}

func TestModel(t *testing.T) {
	for name, p := range map[string][2]Policy{
		"peer":              {policies["lossless_peer"], policies["lossless_peer"]},
		"peer reuse":        {policies["lossless_peer_reuse"], policies["lossless_peer_reuse"]},
		"client and server": {policies["lossless_client"], policies["stateful_server"]},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t, p)
				w.n[0].s.State = Connecting
				who := func(t *rapid.T) *node { return w.n[rapid.IntRange(0, 1).Draw(t, "node")] }
				arrive := func(t *rapid.T) {
					var ps []*pipe
					var to []*node
					for _, p := range w.pipes {
						for _, n := range w.n {
							if !p.cut && len(p.to[n.i]) > 0 {
								ps, to = append(ps, p), append(to, n)
							}
						}
					}
					if len(ps) > 0 {
						k := rapid.IntRange(0, len(ps)-1).Draw(t, "frame")
						w.arrive(to[k], ps[k])
					}
				}
				dial := func(t *rapid.T) { w.dial(who(t)) }
				t.Repeat(map[string]func(*rapid.T){
					"give":     func(t *rapid.T) { w.give(who(t)) },
					"transmit": func(t *rapid.T) { w.transmit(who(t)) },
					"ack":      func(t *rapid.T) { w.tellAck(who(t)) },
					"dial":     dial, "dial too": dial,
					"notice":   func(t *rapid.T) { w.notice(who(t)) },
					"taken in": func(t *rapid.T) { w.takenIn(who(t)) },
					"arrive":   arrive, "arrive too": arrive, "arrive again": arrive, "arrive also": arrive,
					"cut": func(t *rapid.T) {
						var live []*pipe
						for _, p := range w.pipes {
							if !p.cut {
								live = append(live, p)
							}
						}
						if len(live) > 0 {
							w.close(live[rapid.IntRange(0, len(live)-1).Draw(t, "transport")])
						}
					},
				})
				w.peace()
			})
		})
	}
}

func (n node) String() string { return fmt.Sprintf("node %d", n.i) }
