package messenger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// errRefused marks that nobody listens at the peer's address.
type errRefused struct{ err error }

func (e errRefused) Error() string { return e.err.Error() }
func (e errRefused) Unwrap() error { return e.err }

// ConnectTo returns the connection to the peer of type t that has addrs: one
// that exists, whoever has opened it, or a new one; the loopback for an address
// of our own. It does not block; messages may be sent at once and wait for the
// connection to be ready. Of the addresses the ones whose transports exist here
// are tried, RDMA before tcp, in the order of Config.Transports, then in the
// order given. A nonce of 0 (ParseAddrs) means whatever incarnation is there: a
// lossless session goes on with the next one, whichever side connects, also one that
// was bound to an incarnation before. With the
// nonce that Messenger.Addrs of the peer has, the connection is to that
// incarnation alone, and gets ErrWrongPeer once there is another.
//
// Of two lossless connections that turn out to lead to one place, by another
// spelling of the host or with and without a nonce, the later one to connect ends
// with ErrDuplicate. Errors: ErrClosed, ErrInvalid.
func (m *Messenger) ConnectTo(t EntityType, addrs AddrVec) (*Connection, error) {
	return m.connectTo(t, addrs, false)
}

// ConnectAnonymous is ConnectTo for a connection that nobody else gets: always a
// new one. It is for lossy policies, and servers that do not register clients:
// others know one session per peer.
func (m *Messenger) ConnectAnonymous(t EntityType, addrs AddrVec) (*Connection, error) {
	return m.connectTo(t, addrs, true)
}

func (m *Messenger) connectTo(t EntityType, addrs AddrVec, anonymous bool) (*Connection, error) {
	for _, a := range addrs {
		if _, err := ParseAddr(a.URL); err != nil {
			return nil, err
		}
	}
	usable := m.usable(addrs)
	if len(usable) == 0 {
		return nil, fmt.Errorf("%w: no transport for any of %v: there is tcp, and what Config.Transports names and has its device", ErrInvalid, addrs)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing.Load() {
		return nil, errShutDown
	}
	if !anonymous {
		c, depends := m.existing(t, addrs, usable, nil)
		if depends {
			m.mu.Unlock()
			here := m.hostAddrs()
			m.mu.Lock()
			if m.closing.Load() {
				return nil, errShutDown
			}
			c, _ = m.existing(t, addrs, usable, here)
		}
		if c != nil {
			m.unbind(c, usable)
			return c, nil
		}
	}
	c := m.newConnection(t, m.policyFor(t, false))
	c.anonymous = anonymous
	c.setDial(usable)
	if m.lacksBetter(usable[0].Scheme(), addrs) {
		m.n.fallbacks[fallbackNoTransport].Add(1)
	}
	m.register(c, usable)
	m.connections[c] = struct{}{}
	c.mu.Lock()
	c.startConnecting()
	c.mu.Unlock()
	return c, nil
}

// existing is the connection that ConnectTo has already, or nil; here and depends are
// isOwn's. m.mu is held.
func (m *Messenger) existing(t EntityType, addrs, usable AddrVec, here []netip.Addr) (c *Connection, depends bool) {
	if t == m.cfg.Name.Type {
		own := false
		if own, depends = m.isOwn(addrs, here); own {
			return m.loop, false
		}
	}
	if c := m.known(t, usable); c != nil && c.State() != StateClosed {
		return c, false
	}
	return nil, depends
}

// known returns the session with a peer at one of addrs, whose nonces need not
// be known: of several incarnations the one that it is open with, else the one that
// it was opened with last. m.mu is held.
func (m *Messenger) known(t EntityType, addrs AddrVec) *Connection {
	if c := m.lookup(t, addrs); c != nil {
		return c
	}
	var best *Connection
	for k, c := range m.peers {
		here := func(a EntityAddr) bool { return k.t == t && k.a.URL == a.URL && a.Nonce == 0 }
		if slices.ContainsFunc(addrs, here) && c.State() != StateClosed && (best == nil || c.likelier(best)) {
			best = c
		}
	}
	return best
}

// likelier reports whether the peer of c, rather than of d, is the incarnation that
// is there now.
func (c *Connection) likelier(d *Connection) bool {
	open, met := c.lastMet()
	otherOpen, otherMet := d.lastMet()
	switch {
	case open != otherOpen:
		return open
	case met != otherMet:
		return met > otherMet
	}
	return c.id > d.id
}

// lastMet reports whether c is open, and when, by Messenger.clock, it met its peer, the
// incarnation that Peer tells of; 0: it has not.
func (c *Connection) lastMet() (open bool, met int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state() == StateOpen, c.metAt
}

// unbind has c go on with whatever incarnation is at those of addrs that have no
// nonce. m.mu is held.
func (m *Messenger) unbind(c *Connection, addrs AddrVec) {
	if c.loop {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addrs {
		if a.Nonce != 0 || slices.Contains(c.dial, a) {
			continue
		}
		dial := slices.Clone(c.dial) // connect may be at it
		if i := slices.IndexFunc(dial, func(d EntityAddr) bool { return d.URL == a.URL }); i >= 0 {
			dial[i] = a
		} else {
			dial = append(dial, a)
		}
		c.setDial(dial)
		m.register(c, AddrVec{a})
	}
}

// toldOurs is our addresses as the peer knows them, nil before it does.
func (c *Connection) toldOurs() msgr2.AddrVec {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ours
}

// usable is the addresses that can be dialed from here, the best first.
func (m *Messenger) usable(addrs AddrVec) (v AddrVec) {
	for _, t := range m.cfg.Transports {
		for _, a := range addrs {
			if a.Scheme() == t.Scheme && m.has(t.Scheme) && dialable(a) {
				v = append(v, a)
			}
		}
	}
	for _, a := range addrs {
		if a.Scheme() == SchemeTCP && dialable(a) {
			v = append(v, a)
		}
	}
	return v
}

// schemeRank orders schemes by what they are for: an adapter's RDMA, that of
// software, a plain stream.
func schemeRank(scheme string) int {
	switch scheme {
	case SchemeTCP:
		return 0
	case SchemeIWARP:
		return 1
	}
	return 2
}

// lacksBetter reports whether addrs has one by a better transport than best, the
// best that can be used, that does not exist here.
func (m *Messenger) lacksBetter(best string, addrs AddrVec) bool {
	return slices.ContainsFunc(addrs, func(a EntityAddr) bool {
		s := a.Scheme()
		return schemeRank(s) > schemeRank(best) && !m.has(s) && dialable(a)
	})
}

// dialable: who is not bound has port 0.
func dialable(a EntityAddr) bool {
	_, port, err := net.SplitHostPort(a.HostPort())
	return err == nil && port != "0"
}

// setDial tells a connection where its peer listens. c.mu is held, or c is new.
func (c *Connection) setDial(addrs AddrVec) {
	c.dial = addrs
	c.session.Dialable = len(addrs) > 0
}

// startConnecting has connect run, or look again. c.mu is held.
func (c *Connection) startConnecting() {
	if c.connecting {
		select {
		case c.wake <- struct{}{}:
		default:
		}
		return
	}
	c.connecting = true
	c.m.wg.Add(1)
	go c.m.connect(c) // ends when the session does not connect any more
}

// connect tries the addresses of c as long as its session is connecting.
func (m *Messenger) connect(c *Connection) {
	defer m.wg.Done()
	for {
		c.mu.Lock()
		if s := c.session.State; (s != session.Connecting && s != session.Wait) || c.claim != nil {
			c.connecting = false
			c.mu.Unlock()
			return
		}
		pause, addrs := time.Until(c.due), c.dial
		c.mu.Unlock()
		if pause <= 0 {
			m.round(c, addrs)
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.ctx.Done():
		}
		timer.Stop()
	}
}

// tried is how an attempt to connect, or several, has ended.
type tried uint8

const (
	triedInVain tried = iota // the next address may do
	triedEnough              // the session does not connect any more
	triedOver                // it is open, or another transport's
)

// round tries each address once.
func (m *Messenger) round(c *Connection, addrs AddrVec) {
	var last *link
	var err error
	for i, a := range addrs {
		l, how, e := m.tryAddress(c, a)
		if how == triedOver {
			return
		}
		if err == nil || !errors.Is(e, conn.ErrDeviceLost) { // that is no reason to give up what another may do
			err = e
		}
		if l != nil {
			last = l
		}
		if how == triedEnough {
			break
		}
		if i+1 < len(addrs) {
			m.n.fallbacks[fallbackReason(e)].Add(1)
		}
	}
	c.attemptFailed(last, err)
}

// tryAddress tries a, and of a name each address that it stands for, in turn. It
// returns the link of the last attempt, if there was any.
func (m *Messenger) tryAddress(c *Connection, a EntityAddr) (last *link, how tried, err error) {
	for todo := (AddrVec{a}); len(todo) > 0; {
		a, todo = todo[0], todo[1:]
		l := m.newLink(a.Scheme(), a.HostPort(), false)
		if !m.admitLink(l) {
			return last, triedEnough, ErrClosed
		}
		c.mu.Lock()
		if c.session.State != session.Connecting || c.claim != nil {
			c.mu.Unlock()
			l.drop()
			return last, triedOver, nil
		}
		c.attempt = l
		c.mu.Unlock()
		l.owner.Store(c)
		m.n.attempts.Add(1)
		var others AddrVec
		if others, err = m.connectOnce(c, l, a); err == nil {
			return l, triedOver, nil
		}
		todo = append(others, todo...)
		c.mu.Lock()
		replaced, stop := c.attempt != l, c.session.State != session.Connecting
		c.mu.Unlock()
		if replaced {
			return l, triedOver, nil
		}
		last = l
		c.note(slog.LevelDebug, "connecting failed", "addr", l.remote, "err", err)
		if errors.As(err, new(errRefused)) {
			c.strand.push(event{kind: eventRefused})
		}
		if stop {
			return last, triedEnough, err
		}
	}
	return last, triedInVain, err
}

// attemptFailed notes why a round of attempts has failed; connect goes on,
// unless that is of no use.
func (c *Connection) attemptFailed(l *link, err error) {
	c.mu.Lock()
	if c.session.State == session.Closed || c.attempt != l {
		c.mu.Unlock()
		return
	}
	c.attempt = nil
	if errors.Is(err, ErrDuplicate) {
		c.fatal(err)
		return
	}
	open := c.session.State == session.Open // the server had agreed
	if permanent(err) && !c.lossless() {
		c.close(err)
		c.note(slog.LevelInfo, "session ended", "err", err)
		c.m.n.faults.Add(1)
		c.strand.push(event{kind: eventReset})
		return
	}
	if open || l == nil {
		c.fault(err)
		return
	}
	c.err = err
	c.due = c.session.Fault(time.Now(), c.pending()).At
	if c.refuse && errors.As(err, new(errRefused)) {
		c.gaveUp = true // shutting down, and nobody is there
	}
	c.wakeFlushed()
	c.mu.Unlock()
}

// permanent reports whether trying again would fail the same way: what is there
// does not want us, or is not what we want, or our device is lost.
func permanent(err error) bool {
	return errors.Is(err, ErrFeatures) || errors.Is(err, ErrAuth) || errors.Is(err, errWrongType) || errors.Is(err, conn.ErrDeviceLost) ||
		(errors.Is(err, ErrProtocol) && !errors.Is(err, msgr2.ErrChecksum))
}

// Why the next address was tried.
const (
	fallbackRefused = iota
	fallbackTimeout
	fallbackOther
	fallbackNoTransport
	fallbackReasons
)

func fallbackReason(err error) int {
	switch {
	case errors.As(err, new(errRefused)):
		return fallbackRefused
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return fallbackTimeout
	}
	return fallbackOther
}

// connectOnce makes one attempt, where a's host is a name at the first of its
// addresses, and returns the others. nil: the connection is open, or was.
func (m *Messenger) connectOnce(c *Connection, l *link, a EntityAddr) (others AddrVec, err error) {
	ctx, cancel := context.WithCancel(context.Background()) // ends with l, which ends with c
	defer cancel()
	if !l.dialing(cancel) {
		return nil, l.failure()
	}
	at, err := m.resolve(ctx, a)
	if err == nil {
		a, others = at[0], at[1:]
		if ep := m.endpoints[a.Scheme()]; ep != nil {
			err = m.dialRDMA(ctx, c, l, ep, a)
		} else {
			err = m.dialStream(ctx, c, l, a)
		}
	}
	if err != nil {
		refused := errors.As(err, new(errRefused))
		l.fail("connect", frameError(err))
		if err = l.failure(); refused {
			err = errRefused{err}
		}
		return others, err
	}
	return nil, nil
}

func (m *Messenger) dialStream(ctx context.Context, c *Connection, l *link, a EntityAddr) error {
	dial, cancelDial := context.WithTimeout(ctx, m.cfg.ConnectTimeout)
	defer cancelDial()
	nc, err := m.cfg.DialStream(dial, a.HostPort())
	if err != nil {
		if isRefused(err) {
			return errRefused{err}
		}
		return err
	}
	t := l.newStream(nc)
	life, cancel := context.WithCancel(context.Background())
	if !l.attach(t, cancel) {
		return l.failure()
	}
	// The address is a name perhaps; the peer knows itself by number.
	target := seenAddr(nc.RemoteAddr())
	target.Nonce = a.Nonce
	if target.Family != 0 {
		if err := m.reach(c, l, fromWire(target)); err != nil {
			return err
		}
	}
	seen := seenAddr(nc.RemoteAddr())
	if err := l.handshakeStream(t, l.params(c, endOf(nc.LocalAddr()), seen, target)); err != nil {
		return err
	}
	m.wg.Add(1)
	go func() { // ends with the link
		defer m.wg.Done()
		l.readStream(life, t)
	}()
	return nil
}
