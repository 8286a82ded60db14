package conn

import "github.com/argonaut-rdma/argonaut/buffer"

// gathering is memory in which short parts of a message lie one behind the other.
type gathering struct {
	b    buffer.RDMABuffer // zero: none
	used int               // bytes of it
	run  int               // bytes of short parts in a row
}

const gatherLeast = 4 << 10 // bytes

// addPart adds part of a packet to the message that comes in: as it lies there, or
// copied, if it is short beside the receive buffer that it would keep from us and
// not just the rest. So a message takes little more memory than its length, however
// the peer, or the number of SGEs of its device, cuts it.
func (c *Conn) addPart(p *packet, part []byte) {
	l, g := c.rx.part, &c.rx.short
	if len(part) >= p.b.Len()/4*3 || g.run == 0 && uint64(len(part)) == c.rx.left {
		g.end(l)
		l.Append(c.handUpBuffer(p, part))
		return
	}
	for len(part) > 0 {
		if g.b.IsZero() {
			n := min(c.rx.left, uint64(c.e.cfg.RecvSize), uint64(max(len(part), g.run, gatherLeast)))
			var ok bool
			if g.b, ok = c.e.arena.TryGet(int(n), c.e.recvOwner); !ok {
				l.Append(c.handUpBuffer(p, part))
				return
			}
		}
		n := copy(g.b.Bytes()[g.used:], part)
		part = part[n:]
		g.used += n
		g.run += n
		c.stats.copiedIn.Add(uint64(n))
		if g.used == g.b.Len() {
			g.next(l)
		}
	}
}

// next puts what has been gathered behind l.
func (g *gathering) next(l *buffer.List) {
	if !g.b.IsZero() {
		l.Append(g.b.Slice(0, g.used))
	}
	g.b, g.used = buffer.RDMABuffer{}, 0
}

// end is next before something that is not short.
func (g *gathering) end(l *buffer.List) {
	g.next(l)
	g.run = 0
}

// drop gives the memory back.
func (g *gathering) drop() {
	if !g.b.IsZero() {
		g.b.Release()
	}
	*g = gathering{}
}
