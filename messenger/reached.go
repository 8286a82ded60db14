package messenger

import (
	"fmt"
	"strconv"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// reached is a transport that a session has, or is making, to a place.
type reached struct {
	l     *link
	c     *Connection
	nonce uint32 // that was asked for; 0: any
}

// reach notes that l, of c's session, is about to introduce itself to the peer at
// a, whose host is a number. A peer knows one session of ours, and each new one
// ends the one before: so of two Connections that have come to the same place by
// different spellings of it, the second gets ErrDuplicate before the peer hears of
// it. The note ends with l. Lossy sessions and anonymous ones may be many.
func (m *Messenger) reach(c *Connection, l *link, a EntityAddr) error {
	if c.anonymous || !c.lossless() {
		return nil
	}
	if w := a.toWire(); w.Family != 0 {
		a = fromWire(w) // in the one spelling that peers tell
	}
	at := peerKey{c.peerType, EntityAddr{URL: a.URL}}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.reached[at]; r.c != nil && r.c != c && (r.nonce == 0 || a.Nonce == 0 || r.nonce == a.Nonce) && r.c.State() != StateClosed {
		return r.c.duplicate(a)
	}
	if k := m.known(c.peerType, AddrVec{a}); k != nil && k != c && k.State() == StateOpen { // it connected to us, perhaps
		return k.duplicate(a)
	}
	m.reached[at] = reached{l, c, a.Nonce}
	l.reached[0] = at
	return nil
}

// instanceAddr stands for a messenger where its addresses do otherwise: in peers and
// reached. It is none that anybody can have asked for.
func instanceAddr(instance uint64) EntityAddr {
	return EntityAddr{URL: "instance " + strconv.FormatUint(instance, 16)}
}

// meet is reach where the peer has said which messenger it is, when it has
// authenticated, and before it hears which session we mean: of several addresses, of
// as many interfaces perhaps, nothing else says that they are one peer's. instance is
// 0 where it has not said it, as Ceph's daemons do not.
func (m *Messenger) meet(c *Connection, l *link, instance uint64) error {
	c.mu.Lock()
	many := c.anonymous || !c.lossless()
	c.mu.Unlock()
	if instance == 0 || many {
		return nil
	}
	at := peerKey{c.peerType, instanceAddr(instance)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if instance == m.instance.Load() {
		return m.loop.duplicate(EntityAddr{URL: l.remote})
	}
	for _, k := range [...]*Connection{m.reached[at].c, m.peers[at]} {
		if k != nil && k != c && k.isSession() {
			return k.duplicate(EntityAddr{URL: l.remote})
		}
	}
	m.reached[at] = reached{l: l, c: c}
	l.reached[1] = at
	return nil
}

// met returns the session that we have, or are about to have, with the messenger
// that r is from, by another address than it tells. m.mu is held.
func (m *Messenger) met(r *hsResult) *Connection {
	if r.instance == 0 {
		return nil
	}
	at := peerKey{r.peer.Type, instanceAddr(r.instance)}
	for _, k := range [...]*Connection{m.reached[at].c, m.peers[at]} {
		if k != nil && k.isSession() {
			return k
		}
	}
	return nil
}

// isSession reports whether c is lossless and has not ended.
func (c *Connection) isSession() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.State != session.Closed && c.lossless()
}

// duplicateError is the error of a connection to where another one leads.
type duplicateError struct {
	of  *Connection
	err error
}

func (e *duplicateError) Error() string { return e.err.Error() }
func (e *duplicateError) Unwrap() error { return e.err }

// duplicate is the error of another connection to a.
func (c *Connection) duplicate(a EntityAddr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &duplicateError{c, fmt.Errorf("%w: %s is where the one to %v at %v leads: use that", ErrDuplicate, a.URL, c.peer, c.dial)}
}

// stepAside has ConnectTo give of for the addresses of c, whose attempt l has found
// out that it leads to the same peer, and which is about to end.
func (m *Messenger) stepAside(c *Connection, l *link, of *Connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.mu.Lock()
	ends, dial := c.attempt == l && c.session.State != session.Closed, c.dial
	c.mu.Unlock()
	if ends && of.State() != StateClosed {
		m.register(of, dial)
	}
}

// unreach ends the notes of l. m.mu is held.
func (m *Messenger) unreach(l *link) {
	for _, at := range l.reached {
		if m.reached[at].l == l {
			delete(m.reached, at)
		}
	}
}
