package messenger

import "fmt"

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
	if r := m.reached[at]; r.c != nil && r.c != c && r.leadsTo(c, a) && r.c.State() != StateClosed {
		return r.c.duplicate(a)
	}
	if k := m.known(c.peerType, AddrVec{a}); k != nil && k != c && k.State() == StateOpen { // it connected to us, perhaps
		return k.duplicate(a)
	}
	if _, live := m.links[l]; !live {
		return errReplaced // it has ended, and would not take the note back
	}
	m.reached[at] = reached{l, c, a.Nonce}
	l.reached = at
	return nil
}

// leadsTo reports whether r may lead to the incarnation that c, another session, asks
// for at a: not if one of them knows that its own peer is another than the other asks
// for. But what is open, and was made when c had met its peer, leads to who is there now:
// the peer of c is gone.
func (r *reached) leadsTo(c *Connection, a EntityAddr) bool {
	asked := EntityAddr{URL: a.URL, Nonce: r.nonce}
	switch {
	case r.nonce == a.Nonce:
		return true
	case a.Nonce == 0:
		open, _ := r.c.lastMet()
		_, met := c.lastMet()
		return !c.knows(asked) || (open && r.l.since.After(c.m.at(met)))
	case r.nonce == 0:
		return !r.c.knows(a)
	}
	return false
}

// duplicate is the error of another connection to a.
func (c *Connection) duplicate(a EntityAddr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: %s is where the one to %v at %v leads: use that", ErrDuplicate, a.URL, c.peer, c.dial)
}

// unreach ends the note of l. m.mu is held.
func (m *Messenger) unreach(l *link) {
	if m.reached[l.reached].l == l {
		delete(m.reached, l.reached)
	}
}
