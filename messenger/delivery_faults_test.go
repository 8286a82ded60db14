package messenger_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

// maxDelay is how long bytes take that are delayed, at most: one write in 64.
const maxDelay = 2 * time.Millisecond

func someDelay(f *rand.Rand) time.Duration {
	late, d := f.IntN(64) == 0, time.Duration(f.Int64N(int64(maxDelay)))
	if !late {
		return 0
	}
	return d
}

// lots are what is drawn for each direction between two hosts: the n-th lot from
// one to the other is the same in each run with the same seed, whatever else is
// drawn meanwhile.
type lots struct {
	seed, what uint64
	mu         sync.Mutex
	rnd        map[[2]string]*rand.Rand
}

func newLots(seed, what uint64) *lots {
	return &lots{seed: seed, what: what, rnd: map[[2]string]*rand.Rand{}}
}

func (l *lots) draw(from, to string, f func(*rand.Rand)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]string{from, to}
	if l.rnd[key] == nil {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %s %s", l.what, from, to)
		l.rnd[key] = rand.New(rand.NewPCG(l.seed, h.Sum64()))
	}
	f(l.rnd[key])
}

// injected is what node i does to its own transports where nothing else can: they
// end after a number of bytes drawn exponentially, so that a connection, which
// has two ends, has the mean that was asked for; in one handshake of ten, at a
// frame by lot; one in 32 of those who connect finds the node silent in the handshake,
// for longer than it waits; and messages are held back.
func (b *battle) injected(i int) *Inject {
	handshake := []string{"BANNER", "HELLO", "AUTH_REQUEST", "AUTH_SIGNATURE", "CLIENT_IDENT"}
	l := newLots(b.size.seed, uint64(3+i))
	fate := map[EntityType]int{} // the step that a handshake of ours to a peer fails at
	return &Inject{
		Seed: b.size.seed + uint64(i), ByteFailures: b.size.cut,
		DeliveryDelays: 1. / 64, DeliveryDelayMax: maxDelay,
		Step: func(s Step) (err error) {
			if s.Incoming && !s.Sending && s.Frame == "HELLO" && !b.inPeace() {
				var silent bool
				l.draw("in", "", func(f *rand.Rand) { silent = f.IntN(32) == 0 })
				if silent {
					b.silent.Add(1)
					select {
					case <-b.peace:
					case <-time.After(connectTimeout + connectTimeout/8):
					}
				}
				return nil
			}
			at := slices.Index(handshake, s.Frame)
			if s.Frame == "SESSION_RECONNECT" {
				at = len(handshake) - 1
			}
			if s.Incoming || !s.Sending || at < 0 || b.inPeace() {
				return nil
			}
			l.draw("", s.Peer.String(), func(f *rand.Rand) {
				if at == 0 {
					doomed, step := f.Float64() < 0.1, f.IntN(len(handshake))
					if fate[s.Peer] = -1; doomed {
						fate[s.Peer] = step
					}
				}
				if fate[s.Peer] == at {
					b.handshakesCut.Add(1)
					err = errFate
				}
			})
			return err
		},
	}
}

var errFate = errors.New("the test ends this handshake")

func fromSeed(seed uint64, n uint32) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(n))) }

func (b *battle) inPeace() bool {
	select {
	case <-b.peace:
		return true
	default:
		return false
	}
}

func (b *battle) splits(network *messengertest.Network) {
	rnd := fromSeed(b.size.seed, 1<<31)
	for {
		pause := time.Duration(200+rnd.IntN(800)) * time.Millisecond
		i, j := rnd.IntN(4), rnd.IntN(3)
		if j >= i {
			j++
		}
		select {
		case <-b.peace:
			return
		case <-time.After(pause):
		}
		network.Split([]string{b.cl.Nodes[i].Host}, []string{b.cl.Nodes[j].Host})
		select {
		case <-b.peace:
		case <-time.After(time.Duration(rnd.Int64N(int64(silence + silence/4)))): // some are noticed
		}
		network.Heal()
	}
}
