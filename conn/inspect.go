package conn

import (
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Inspection is what a connection is at, for operators. It has no keys in it.
type Inspection struct {
	ID            uint64 // Conn.ID
	Local, Remote string
	// Credits is how many receive buffers of the peer we may use, of at most
	// CreditsMost; Lent how many of ours the peer has used and not been given
	// again.
	Credits, CreditsMost, Lent int
	// Waiting is the Sends that wait, Built the SENDs that wait for credits, Posted
	// those posted that are not known to be over.
	Waiting, Built, Posted int
	// Announced is the payloads that the peer has to fetch, their bytes, and since
	// when the first of them is.
	Announced       int
	AnnouncedBytes  int64
	OldestAnnounced time.Duration
	// Fetching is the payloads of the peer that are being fetched.
	Fetching      int
	FetchingBytes int64
	// Reads and Writes are those under way, by grants of the peer.
	Reads, Writes         int
	ReadBytes, WriteBytes int64
	// Parked: what the peer sends waits for Config.Admit or for memory; PeerParked:
	// the peer has said so of ours.
	Parked, PeerParked bool
	Stats              ConnStats
}

// Inspect returns a snapshot. It holds the connection's lock for as long as it
// takes to count what is under way.
func (c *Conn) Inspect() Inspection {
	i := Inspection{
		ID: c.id, Local: c.LocalAddr().String(), Remote: c.remote.String(), Parked: c.isParked.Load(),
		Lent: max(int(c.used.Load()), 0), Stats: c.Stats(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i.Credits, i.CreditsMost, i.PeerParked = c.credits, int(c.peer.Most), c.rndv.parked
	i.Built, i.Posted = int(c.tx.built-c.tx.posted), int(c.tx.posted-c.tx.retired)
	for w := c.waiters.head; w != nil; w = w.next {
		i.Waiting++
	}
	r := &c.rndv
	for n := r.done; n < r.sent; n++ {
		d := r.at(n)
		if d.payload == nil {
			continue // given back already
		}
		if i.Announced == 0 {
			i.OldestAnnounced = time.Since(d.begun)
		}
		i.Announced++
		i.AnnouncedBytes += d.payload.Len()
	}
	for _, o := range c.ops.all {
		switch {
		case o.list == nil:
		case o.rendezvous:
			i.Fetching++
			i.FetchingBytes += o.list.Len()
		case o.read:
			i.Reads++
			i.ReadBytes += o.list.Len()
		default:
			i.Writes++
			i.WriteBytes += o.list.Len()
		}
	}
	return i
}

// LiveGrant is a grant of ours that is live.
type LiveGrant struct {
	Owner       string // of the buffer
	Len         int    // bytes
	Write, Once bool
}

// LiveGrants calls yield with each grant of ours that is live, in no order. The
// connection is locked meanwhile, so yield must not call it.
func (c *Conn) LiveGrants(yield func(LiveGrant)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, gs := range c.keys.grants {
		for _, g := range gs {
			if i, ok := g.Info(); ok {
				yield(liveGrant(i))
			}
		}
	}
}

func liveGrant(i buffer.GrantInfo) LiveGrant {
	return LiveGrant{Owner: i.Owner, Len: i.Len, Write: i.Access&verbs.AccessRemoteWrite != 0, Once: i.Once}
}
