package messenger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"time"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// Each pair of nodes has policies of its own; policies are by type, so each
// node is of another one.
var deliveryTypes = []EntityType{Mon, MDS, OSD, Mgr}

// pairPolicies is what the lower and the higher node of a pair may have.
var pairPolicies = []struct {
	name   string
	lo, hi func() Policy
	lossy  bool
}{
	{"lossless_peer", LosslessPeer, LosslessPeer, false},
	{"lossless_peer_reuse", LosslessPeerReuse, LosslessPeerReuse, false},
	{"lossless_client, stateful_server", LosslessClient, StatefulServer, false},
	{"lossy_client, stateless_server", LossyClient, StatelessServer, true},
	{"lossy_client, stateless_registered_server", LossyClient, StatelessRegisteredServer, true},
}

// channel is the model of one direction of one pair: what has been sent and
// what may come next. Every message that comes steps it, so that nothing is
// sampled: a session that promises order leaves one number that may come next,
// and checking a history against that takes no search, which is what a checker
// of linearizability would be for; nor can a run be made smaller, as the rest of
// it is threads and time. The models that rapid drives are those of the session
// itself, in internal/session.
type channel struct {
	from, to int
	lossy    bool

	mu        sync.Mutex
	sent      uint32            // numbers 1 to sent have been accepted by Send
	next      uint32            // lossless: the only number that may come
	last      map[uint32]uint32 // lossy: by session, the last number that came
	sessions  int               // lossy: that it was sent on
	delivered int
	wrong     []string
}

// receive steps the model.
func (c *channel) receive(epoch, n uint32, sumRight bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	bad := func(format string, a ...any) {
		if len(c.wrong) < 10 {
			c.wrong = append(c.wrong, fmt.Sprintf(format, a...))
		}
	}
	if !sumRight {
		bad("message %d has the wrong payload", n)
	}
	c.delivered++
	if c.lossy {
		if n <= c.last[epoch] {
			bad("message %d of session %d came after %d", n, epoch, c.last[epoch])
		}
		c.last[epoch] = n
		return
	}
	if n != c.next {
		bad("message %d came, and not %d", n, c.next)
	}
	c.next = n + 1
}

// silence is when a peer that is not heard is given up.
const silence = 3 * time.Second

// connectTimeout is how long who connects waits for a peer.
const connectTimeout = 3 * time.Second

// soldier is a node's dispatcher.
type soldier struct {
	BaseDispatcher
	b  *battle
	me int
}

func (s *soldier) other(c *Connection) int {
	name, _, _ := c.Peer()
	for i, t := range deliveryTypes {
		if t == name.Type {
			return i
		}
	}
	panic("a peer of no known type")
}

func (s *soldier) HandleAccept(c *Connection) { s.b.opened(s.me, s.other(c), c) }

// HandleReset opens a lossy session anew, as the server has something to send.
func (s *soldier) HandleReset(c *Connection) {
	if j := s.other(c); !s.b.policyOf(s.me, j).Server {
		_, err := s.b.conn(s.b.t.Context(), s.me, j, c)
		if err != nil && !errors.Is(err, ErrClosed) {
			s.b.t.Error(err)
		}
	}
}

func (s *soldier) Dispatch(_ context.Context, m *Message) bool {
	defer m.Release()
	from := s.other(m.Conn)
	le := binary.LittleEndian
	epoch, n, sum := le.Uint32(m.Front), le.Uint32(m.Front[4:]), le.Uint32(m.Front[8:])
	s.b.ch[from][s.me].receive(epoch, n, sum == checksum(m))
	return true
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(m *Message) (sum uint32) {
	if m.Data == nil {
		return 0
	}
	for i := range m.Data.Segments() {
		sum = crc32.Update(sum, castagnoli, m.Data.At(i).Bytes())
	}
	return sum
}

func (b *battle) opened(i, j int, c *Connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[i][j] = c
	close(b.moved)
	b.moved = make(chan struct{})
}

// conn returns i's connection to j: i's own, or the last that j has opened.
func (b *battle) conn(ctx context.Context, i, j int, not *Connection) (*Connection, error) {
	pol := b.policyOf(i, j)
	if !pol.Server {
		return b.cl.Nodes[i].ConnectTo(deliveryTypes[j], b.cl.Nodes[j].Addrs())
	}
	for {
		b.mu.Lock()
		c, moved := b.conns[i][j], b.moved
		b.mu.Unlock()
		if c != nil && c != not {
			return c, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (b *battle) kind(i, j int) int {
	lo, hi := min(i, j), max(i, j)
	return fromSeed(b.size.seed, uint32(50+lo*4+hi)).IntN(len(pairPolicies))
}

func (b *battle) policyOf(i, j int) (p Policy) {
	k := pairPolicies[b.kind(i, j)]
	if p = k.lo(); i > j {
		p = k.hi()
	}
	// Each node's memory has to do for what its three sessions keep, and for
	// what it receives.
	p.QueueBytes, p.QueueMessages = 2<<20, 64
	return p
}
