package messenger

// restAfter is how long nothing but keepalives has to travel until a connection
// gives back the memory that a burst has left behind: queues and scratch keep it
// while they are used, so that messages cost no allocations.
const restAfter = 2 * tickInterval

// keptAtRest is how much scratch an idle connection keeps in one place, bytes: what
// keepalives need.
const keptAtRest = 128

// rest gives memory back, if c has l and nothing is queued or being sent. It may be
// called again and again.
func (c *Connection) rest(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l || c.draining || c.unsent() {
		return // what is sent is the drain's
	}
	trim(&c.scratch)
	trim(&c.front)
	c.queue.control.rest()
	for i := range c.queue.levels {
		c.queue.levels[i].ring.rest()
	}
	c.sent.rest()
	c.replay.rest()
	c.waiting.rest()
	l.t.rest()
	if len(c.serving) == 0 {
		c.serving = nil
	}
	if len(c.calls) == 0 {
		c.calls = nil
	}
	if c.ackTimer != nil && !c.ackArmed {
		c.ackTimer.Stop()
		c.ackTimer = nil
	}
	c.strand.mu.Lock()
	defer c.strand.mu.Unlock()
	c.strand.events.rest()
}

// trim lets go of scratch that is large.
func trim(b *[]byte) {
	if cap(*b) > keptAtRest {
		*b = nil
	}
}

// rest gives the memory of an empty ring back.
func (r *ring[T]) rest() {
	if r.n == 0 {
		*r = ring[T]{}
	}
}

func (t *streamTransport) rest() {
	if len(t.out) == 0 {
		trim(&t.out)
	}
	t.s.Trim()
	t.l.shield.rest()
}

func (t *rdmaTransport) rest() { t.l.shield.rest() }

// rest gives back what sealing needs, and the ciphers; s may be nil. The rest of what
// opening needs is the reader's.
func (s *shield) rest() {
	if s == nil {
		return
	}
	s.tx.Forget()
	s.dtx.Forget()
	s.drx.Forget()
	trim(&s.head)
	trim(&s.tags)
	s.parts = nil
}
