package messenger

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

var _ sessionSide = (*link)(nil)

// errLostRace: the peer connects to us at the same time, and its attempt goes
// first.
var errLostRace = errors.New("messenger: the peer's own attempt to connect goes first")

// errReplaced: another transport has become the session's.
var errReplaced = fmt.Errorf("%w: another transport has taken over", ErrClosed)

// attempting runs f with the lock of the session that l connects for, if l is
// still its attempt.
func (l *link) attempting(f func(c *Connection) error) error {
	c := l.owner.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attempt != l || c.session.State == session.Closed {
		return errReplaced
	}
	return f(c)
}

// begin looks at who the peer is, as it has authenticated: nobody but whom the
// session is with is asked for it, or obeyed when it answers.
func (l *link) begin() (o session.Opening, err error) {
	return o, l.attempting(func(c *Connection) error {
		if peer := l.hs.authResult.Peer; c.verified.differs(peer) {
			return fmt.Errorf("%w: peer is %v, the session is with %v", ErrAuth, peer, c.verified)
		}
		o = c.session.Begin(l.globalSeq, l.m.cookie())
		return nil
	})
}

func (l *link) retry(connectSeq uint64) error {
	l.m.n.retries.Add(1)
	return l.attempting(func(c *Connection) error { return protocolError(c.session.Retry(connectSeq)) })
}

func (l *link) retryGlobal(globalSeq uint64) error {
	l.m.n.retriesGlobal.Add(1)
	return l.attempting(func(c *Connection) error {
		if err := c.session.RetryGlobal(globalSeq, l.m.mostGlobalSeq()); err != nil {
			return protocolError(err)
		}
		l.globalSeq = l.m.nextGlobalSeq(globalSeq)
		return nil
	})
}

func (l *link) lostRace() error {
	l.m.n.racesLost.Add(1)
	return l.attempting(func(c *Connection) error {
		c.session.LostRace()
		return nil
	})
}

// opened makes the session known by the addresses that its peer tells in the moment
// in which it is that peer's: an attempt that the peer has given up for this one may
// be here already, and is then found to be late.
func (l *link) opened(cookie, globalSeq uint64, r *hsResult) error {
	m, c := l.m, l.owner.Load()
	m.mu.Lock()
	c.mu.Lock()
	if c.attempt != l || c.session.State == session.Closed {
		c.mu.Unlock()
		m.mu.Unlock()
		return errReplaced
	}
	for _, a := range r.addrs {
		if m.peers[peerKey{c.peerType, a}] == nil {
			m.register(c, AddrVec{a})
		}
	}
	m.unregisterOthers(c, r.addrs) // but what the incarnation before has said: late attempts of it are found, too
	c.session.ServerIdent(cookie, globalSeq, r.lossy)
	c.met(l, r)
	m.mu.Unlock()
	orphans := c.renewed()
	c.mu.Unlock()
	endCalls(orphans)
	return nil
}

func (l *link) resumed(msgSeq uint64) error {
	var batch [ackBatch]*Message
	var n int
	c := l.owner.Load()
	err := l.attempting(func(c *Connection) error {
		if err := c.session.ReconnectOK(msgSeq); err != nil {
			return protocolError(err)
		}
		l.numbered = msgSeq
		n = c.acked(&batch)
		return nil
	})
	c.releaseAcked(&batch, n)
	return err
}

func (l *link) reset(full bool) error {
	c := l.owner.Load()
	c.mu.Lock()
	if c.attempt != l || c.session.State == session.Closed {
		c.mu.Unlock()
		return errReplaced
	}
	if c.session.SessionReset(full) {
		c.forgotten()
		return nil
	}
	c.mu.Unlock()
	return nil
}

// answer decides about an incoming transport, see sessionSide.
func (l *link) answer(in session.Incoming, r *hsResult) (a session.Answer, t taken, err error) {
	m := l.m
	m.mu.Lock()
	if m.closing.Load() {
		m.mu.Unlock()
		return a, t, ErrClosed
	}
	ex := m.lookup(r.peer.Type, r.addrs)
	if ex == nil && !in.Reconnect {
		ex = m.predecessor(r, in.GlobalSeq)
	}
	places, err := m.placesOf(r, ex)
	if err != nil {
		m.mu.Unlock()
		return a, t, err
	}
	var s *session.Session
	var kept Policy
	goesOn := false
	if ex != nil {
		ex.mu.Lock()
		if ex.session.State != session.Closed && ex.verified.differs(r.verified) {
			defer m.mu.Unlock()
			defer ex.mu.Unlock()
			return a, t, fmt.Errorf("%w: peer authenticated as %v and asks for the session of %v", ErrAuth, r.verified, ex.verified)
		}
		s = &ex.session
		kept, goesOn = ex.keptPolicy()
		if ours := l.hs.understood(ex.ours); len(ours) > 0 { // the peer compares with what it knows
			in.PeerFirst = raceAddr(r.wire).Compare(raceAddr(ours)) < 0
		}
	}
	if r.policy = m.policyFor(r.peer.Type, true); goesOn {
		r.policy = kept
	}
	a = r.policy.rules().Answer(s, in)
	if m.draining.Load() && (a.Verdict == session.AcceptNew || a.Verdict == session.ReplaceLossy) {
		if ex != nil {
			ex.mu.Unlock()
		}
		m.mu.Unlock()
		return a, t, fmt.Errorf("%w: %v takes no new sessions", ErrDraining, m.cfg.Name)
	}
	var c *Connection
	switch a.Verdict {
	case session.AcceptNew, session.ReplaceLossy:
		if ex != nil {
			ex.mu.Unlock()
		}
		c = m.newConnection(r.peer.Type, r.policy)
		c.setDial(m.usable(r.addrs))
		c.session.Accepted(in, m.cookie())
		c.claim = l
		c.met(l, r)
		t = c.told()
		m.connections[c] = struct{}{}
		if p := r.policy; !p.Server || !p.Lossy || p.RegisterLossyClients {
			m.register(c, places)
		}
		m.mu.Unlock()
		if a.Verdict == session.ReplaceLossy {
			ex.replaced()
		}
	case session.Take:
		m.register(ex, places)
		m.unregisterOthers(ex, places)
		m.mu.Unlock()
		c = ex
		t = c.take(l, r, in, a.Lost)
	default:
		wrongCookie := false
		switch a.Verdict {
		case session.SendWait:
			ex.hurry()
		case session.SendReset:
			m.n.resetsSent.Add(1)
			wrongCookie = ex != nil && ex.session.State != session.Closed && ex.session.ClientCookie != in.ClientCookie
		}
		var late *link
		if a.Verdict == session.SendReset && !a.Full && ex != nil && ex.session.State == session.Connecting && ex.session.ServerCookie == 0 {
			late = ex.giveWay()
		}
		if ex != nil {
			ex.mu.Unlock()
		}
		m.mu.Unlock()
		if late != nil {
			late.fail("", errReplaced)
		}
		if wrongCookie {
			l.note(slog.LevelInfo, "reset sent", "err", fmt.Errorf("%w: %v asks to go on with a session by another cookie than it has", ErrReset, r.peer))
		}
		return a, t, nil
	}
	// Larger than that of an attempt of ours that lost the race: it may come later.
	t.globalSeq = m.nextGlobalSeq(0)
	l.owner.Store(c)
	if err := l.failure(); err != nil {
		c.lost(l, err) // it ended before it was known whose it is
		return a, t, err
	}
	return a, t, nil
}

// told is what the client that has claimed the session learns. c.mu is held, or
// c is new.
func (c *Connection) told() taken {
	return taken{cookie: c.session.ServerCookie, lossy: c.session.Policy.Lossy, msgSeq: c.session.InSeq}
}

// met notes with whom a session begins. Both sides know it before the transport is
// open: the peer may go on with the session on another one. c.mu is held, or c is
// new.
func (c *Connection) met(l *link, r *hsResult) {
	c.peer, c.verified, c.features, c.addrs = r.peer, r.verified, r.features, r.addrs
	c.metAt, c.ours = c.m.clock(), l.hs.ownAddrs()
	c.auth = &authenticated{r.globalID, r.keys.Identity}
}

// take moves the session to l, which is to open it: its present transport, one
// that was being taken in, and its own attempt to connect, end. It is called with
// c.mu locked, and unlocks it.
func (c *Connection) take(l *link, r *hsResult, in session.Incoming, lost bool) taken {
	old, attempt, claim := c.link, c.attempt, c.claim
	if old != nil {
		c.parted = time.Now()
	}
	c.link, c.attempt, c.claim = nil, nil, l
	c.setReady(false)
	var stale []*Message
	if lost {
		c.session.Reset()
	} else {
		stale = c.requeue()
	}
	c.session.Take(in, c.m.cookie())
	if in.Reconnect {
		l.numbered = in.MsgSeq
	} else {
		c.met(l, r)
	}
	var orphans []*call
	if !in.Reconnect && !lost {
		orphans = c.renewed()
	}
	t := c.told()
	var batch [ackBatch]*Message
	n := c.acked(&batch)
	if lost {
		c.forgotten()
	} else {
		c.mu.Unlock()
	}
	for _, x := range [...]*link{old, attempt, claim} {
		if x != nil {
			x.fail("", errReplaced)
		}
	}
	releaseAll(stale)
	endCalls(orphans)
	c.releaseAcked(&batch, n)
	return t
}

// hurry has a session that lets the peer wait connect now. c.mu is held.
func (c *Connection) hurry() {
	switch {
	case c.session.Wake():
		c.startConnecting()
	case c.session.State == session.Connecting:
		c.due = c.due.Add(-c.m.cfg.BackoffMax)
		c.startConnecting()
	}
}

// giveWay gives our own attempt up, an ident, which the caller ends: the peer has
// been told to ask anew for the session that it may have taken that for. Its
// answer, and messages behind it, may be here already: were they received now, the
// numbers would begin anew behind them, and the peer would send them again. (An
// attempt to reconnect is not given up: the peer may be giving its own up for it,
// at the same time, again and again.) c.mu is held.
func (c *Connection) giveWay() *link {
	l := c.attempt
	if l != nil {
		c.attempt = nil
		c.due = time.Now().Add(c.m.cfg.BackoffMin) // the peer is about to ask
	}
	return l
}

// leaveStandby connects, if the session is in standby. c.mu is held.
func (c *Connection) leaveStandby() {
	if c.session.Wake() {
		c.startConnecting()
	}
}

// replaced ends a lossy session whose peer has connected anew.
func (c *Connection) replaced() {
	c.mu.Lock()
	c.fatal(&FaultError{Peer: c.peer.String(), Op: "accept", Err: errReplaced})
}

// differs reports whether both names are known and not the same.
func (n EntityName) differs(o EntityName) bool {
	return n.Type != o.Type || (n.Num >= 0 && o.Num >= 0 && n.Num != o.Num)
}

func protocolError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrProtocol, err)
}

// peerKey is one address of a peer, in Messenger.peers.
type peerKey struct {
	t EntityType
	a EntityAddr
}

// lookup returns the session with the peer of type t that has one of addrs. m.mu
// is held.
func (m *Messenger) lookup(t EntityType, addrs AddrVec) *Connection {
	for _, a := range addrs {
		if c := m.peers[peerKey{t, a}]; c != nil {
			return c
		}
	}
	for _, a := range addrs {
		// One that is to be reached whatever its nonce is, and has not said it.
		if c := m.peers[peerKey{t, EntityAddr{URL: a.URL}}]; c != nil && a.Nonce != 0 && !c.knows(a) {
			return c
		}
	}
	return nil
}

// predecessor returns the session that a peer goes on with that connects as another
// incarnation of its entity: one that was connected to by the place alone, and so
// is with whoever is there next. It has to be the same entity, by number, and to
// have counted further, or the one before may be alive. m.mu is held.
func (m *Messenger) predecessor(r *hsResult, globalSeq uint64) *Connection {
	if r.peer.Num < 0 {
		return nil
	}
	for _, a := range r.addrs {
		place := EntityAddr{URL: a.URL}
		if c := m.peers[peerKey{r.peer.Type, place}]; c != nil && c.precedes(r.peer, place, globalSeq) {
			return c
		}
	}
	return nil
}

func (c *Connection) precedes(peer EntityName, place EntityAddr, globalSeq uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.State != session.Closed && c.lossless() && c.peer == peer &&
		slices.Contains(c.dial, place) && c.session.PeerGlobalSeq < globalSeq
}

// knows reports whether the peer at a's place has told another nonce than a's.
func (c *Connection) knows(a EntityAddr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.addrs {
		if b.URL == a.URL {
			return b.Nonce != a.Nonce
		}
	}
	return false
}

// register makes c known by addrs. m.mu is held.
func (m *Messenger) register(c *Connection, addrs AddrVec) {
	if c.anonymous {
		return
	}
	for _, a := range addrs {
		k := peerKey{c.peerType, a}
		m.peers[k] = c
		if !slices.Contains(c.keys, k) {
			c.keys = append(c.keys, k)
		}
	}
}

// placesOf is those of the addresses that the peer of r tells by which it is to be
// known: not what a session that is not ex has, unless that is certainly of the same
// peer, or over. One of another peer is an error, ErrAuth. m.mu is held.
func (m *Messenger) placesOf(r *hsResult, ex *Connection) (places AddrVec, err error) {
	for _, a := range r.addrs {
		if o := m.peers[peerKey{r.peer.Type, a}]; o != nil && o != ex {
			o.mu.Lock()
			live, verified := o.session.State != session.Closed, o.verified
			o.mu.Unlock()
			switch {
			case live && verified.differs(r.verified):
				return nil, fmt.Errorf("%w: peer authenticated as %v and says that it is at %v, as %v is", ErrAuth, r.verified, a, verified)
			case live && verified != r.verified:
				continue
			}
		}
		places = append(places, a)
	}
	return places, nil
}

// unregisterOthers forgets what c was known by but addrs, what it dials, and what
// its peer has said when the session began: a peer that connects again and again does
// not pile up addresses. m.mu and c.mu are held.
func (m *Messenger) unregisterOthers(c *Connection, addrs AddrVec) {
	c.keys = slices.DeleteFunc(c.keys, func(k peerKey) bool {
		if slices.Contains(addrs, k.a) || slices.Contains(c.dial, k.a) || slices.Contains(c.addrs, k.a) {
			return false
		}
		if m.peers[k] == c {
			delete(m.peers, k)
		}
		return true
	})
}

// unregister forgets c. m.mu is held.
func (m *Messenger) unregister(c *Connection) {
	for _, k := range c.keys {
		if m.peers[k] == c {
			delete(m.peers, k)
		}
	}
	c.keys = nil
}

// nextGlobalSeq numbers an attempt to connect; it is larger than after.
func (m *Messenger) nextGlobalSeq(after uint64) uint64 {
	for {
		old := m.globalSeq.Load()
		n := max(old, after) + 1
		if m.globalSeq.CompareAndSwap(old, n) {
			return n
		}
	}
}

// clockSlack is by how much the clock may have been set back since an incarnation
// of ours that peers remember.
const clockSlack = 24 * time.Hour

// mostGlobalSeq bounds what a peer can have heard of us, as counting begins at the
// time of day. One that tells more would have all others take our next incarnation
// for a late attempt of this one.
func (m *Messenger) mostGlobalSeq() uint64 {
	return max(m.globalSeq.Load(), uint64(time.Now().Add(clockSlack).UnixMilli()))
}

// seenAs replaces an unspecified IP address by the one that the transport sees.
func seenAs(a, seen msgr2.Addr) msgr2.Addr {
	if ap := a.AddrPort(); ap.IsValid() && ap.Addr().IsUnspecified() && seen.Family != 0 {
		a.Family, a.IP = seen.Family, seen.IP
	}
	return a
}
