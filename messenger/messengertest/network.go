package messengertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Network is a network in memory. Hosts are IP addresses, in text; they need not
// be declared. All methods are safe for concurrent use.
type Network struct {
	mu        sync.Mutex
	rnd       *rand.Rand
	listeners map[string]*listener
	conns     map[*pair]struct{}
	lastPort  uint16
	latency   func(from, to string) time.Duration
	cutAfter  func(from, to string) int64
	sides     map[string]int // while split: the side of each host named
	split     bool
	changed   chan struct{} // closed when split changes
	dialed    int
}

// NewNetwork makes a network without latency. seed is for Chance.
func NewNetwork(seed uint64) *Network {
	return &Network{
		rnd: rand.New(rand.NewPCG(seed, 2)), listeners: map[string]*listener{}, conns: map[*pair]struct{}{},
		lastPort: 1023, sides: map[string]int{}, changed: make(chan struct{}),
	}
}

// Chance is true with probability p, drawn from the network's seed.
func (n *Network) Chance(p float64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rnd.Float64() < p
}

// Exp is drawn from the exponential distribution of that mean.
func (n *Network) Exp(mean float64) float64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rnd.ExpFloat64() * mean
}

// SetLatency has bytes take the time that f says from one host to another,
// asked for each write. nil: none. f must not call the network.
func (n *Network) SetLatency(f func(from, to string) time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.latency = f
}

// SetCutAfter has each connection that is made from now on end after the number
// of bytes, both ways together, that f says for it. nil, or a negative number:
// never.
func (n *Network) SetCutAfter(f func(from, to string) int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cutAfter = f
}

// Cut ends all connections between two hosts, as a reset does: both ends fail,
// what is on its way is lost.
func (n *Network) Cut(a, b string) {
	n.each(func(p *pair) bool { return p.between(a, b) }, (*pair).reset)
}

// CutAll ends all connections.
func (n *Network) CutAll() {
	n.each(func(*pair) bool { return true }, (*pair).reset)
}

// Split lets nothing pass between hosts on different sides, and hosts on none of
// them reach all: connections stay and are silent, in both directions, also
// about their end; dialing waits. It replaces an earlier split.
func (n *Network) Split(sides ...[]string) {
	n.mu.Lock()
	n.split = true
	clear(n.sides)
	for i, hosts := range sides {
		for _, h := range hosts {
			n.sides[h] = i + 1
		}
	}
	n.mu.Unlock()
	n.splitChanged()
}

// Heal ends a split; what was held up goes on.
func (n *Network) Heal() {
	n.mu.Lock()
	n.split = false
	n.mu.Unlock()
	n.splitChanged()
}

func (n *Network) splitChanged() {
	n.mu.Lock()
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
	n.each(func(*pair) bool { return true }, func(p *pair) {
		n.mu.Lock()
		apart := n.apart(p.hosts[0], p.hosts[1])
		n.mu.Unlock()
		for i := range p.half {
			p.half[i].setBlocked(apart)
		}
	})
}

// apart reports whether two hosts can not reach each other. n.mu is held.
func (n *Network) apart(a, b string) bool {
	x, y := n.sides[a], n.sides[b]
	return n.split && x != 0 && y != 0 && x != y
}

// Connections is how many connections are open at either end, Dialed how many
// were ever made.
func (n *Network) Connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

// Dialed is how many connections were ever made.
func (n *Network) Dialed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dialed
}

func (n *Network) each(which func(*pair) bool, f func(*pair)) {
	n.mu.Lock()
	var all []*pair
	for p := range n.conns {
		if which(p) {
			all = append(all, p)
		}
	}
	n.mu.Unlock()
	for _, p := range all {
		f(p)
	}
}

// Dialer is a host's Dial, for messenger.Config.DialStream and iwarp.Config.Dial.
func (n *Network) Dialer(host string) func(ctx context.Context, hostport string) (net.Conn, error) {
	return func(ctx context.Context, hostport string) (net.Conn, error) { return n.dial(ctx, host, hostport) }
}

// Listener is a host's Listen, for messenger.Config.ListenStream and
// iwarp.Config.Listen. The host in the address is ignored but must be one.
func (n *Network) Listener(host string) func(ctx context.Context, hostport string) (net.Listener, error) {
	return func(_ context.Context, hostport string) (net.Listener, error) { return n.listen(host, hostport) }
}

func (n *Network) listen(host, hostport string) (net.Listener, error) {
	ap, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "mem", Err: err}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	port := ap.Port()
	if port == 0 {
		port = n.nextPort()
	}
	addr := tcpAddr(host, port)
	if n.listeners[addr.String()] != nil {
		return nil, &net.OpError{Op: "listen", Net: "mem", Addr: addr, Err: syscall.EADDRINUSE}
	}
	l := &listener{n: n, addr: addr, accepted: make(chan net.Conn, backlog), done: make(chan struct{})}
	n.listeners[addr.String()] = l
	return l, nil
}

// backlog bounds the connections that wait to be accepted.
const backlog = 128

func (n *Network) nextPort() uint16 {
	n.lastPort++
	if n.lastPort < 1024 {
		n.lastPort = 1024
	}
	return n.lastPort
}

func tcpAddr(host string, port uint16) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), port))
}

func (n *Network) dial(ctx context.Context, host, hostport string) (net.Conn, error) {
	ap, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: err}
	}
	to := ap.Addr().String()
	remote := tcpAddr(to, ap.Port())
	n.mu.Lock()
	for n.apart(host, to) { // packets vanish: no answer, not even a refusal
		changed := n.changed
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "mem", Addr: remote, Err: ctx.Err()}
		}
		n.mu.Lock()
	}
	l := n.listeners[remote.String()]
	if l == nil {
		n.mu.Unlock()
		return nil, &net.OpError{Op: "dial", Net: "mem", Addr: remote, Err: syscall.ECONNREFUSED}
	}
	p := newPair(n, host, to)
	p.left.Store(unlimited)
	if n.cutAfter != nil {
		if k := n.cutAfter(host, to); k >= 0 {
			p.left.Store(k)
		}
	}
	n.conns[p] = struct{}{}
	n.dialed++
	local := tcpAddr(host, n.nextPort())
	n.mu.Unlock()
	ours, theirs := p.ends(local, remote)
	select {
	case l.accepted <- theirs:
	case <-l.done:
		p.reset()
		return nil, &net.OpError{Op: "dial", Net: "mem", Addr: remote, Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		p.reset()
		return nil, &net.OpError{Op: "dial", Net: "mem", Addr: remote, Err: ctx.Err()}
	}
	select {
	case <-l.done: // it may have looked before
		l.drop()
	default:
	}
	return ours, nil
}

type listener struct {
	n        *Network
	addr     *net.TCPAddr
	accepted chan net.Conn
	once     sync.Once
	done     chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.done:
		return nil, fmt.Errorf("accept %v: %w", l.addr, net.ErrClosed)
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Close() error {
	l.once.Do(func() {
		l.n.mu.Lock()
		delete(l.n.listeners, l.addr.String())
		l.n.mu.Unlock()
		close(l.done)
		l.drop()
	})
	return nil
}

// drop resets what nobody will accept.
func (l *listener) drop() {
	for {
		select {
		case c := <-l.accepted:
			c.(*end).p.reset()
		default:
			return
		}
	}
}
