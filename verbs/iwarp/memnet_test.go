package iwarp_test

import (
	"context"
	"net"
	"sync"
	"syscall"
)

// memNet is a network in memory: connections are pairs of net.Pipe, which take
// nothing that nobody reads.
type memNet struct {
	mu    sync.Mutex
	last  int
	ports map[int]*memListener
}

func newMemNet() *memNet { return &memNet{last: 1000, ports: map[int]*memListener{}} }

// Listen is for Config.Listen.
func (n *memNet) Listen(_ context.Context, addr string) (net.Listener, error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.Port == 0 {
		n.last++
		a.Port = n.last
	}
	if n.ports[a.Port] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &memListener{n: n, addr: a, conns: make(chan net.Conn, 64), done: make(chan struct{})}
	n.ports[a.Port] = l
	return l, nil
}

// Dial is for Config.Dial.
func (n *memNet) Dial(ctx context.Context, addr string) (net.Conn, error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	refused := &net.OpError{Op: "dial", Net: "mem", Addr: a, Err: syscall.ECONNREFUSED}
	n.mu.Lock()
	l := n.ports[a.Port]
	n.last++
	here := &net.TCPAddr{IP: a.IP, Port: n.last}
	n.mu.Unlock()
	if l == nil {
		return nil, refused
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- memConn{theirs, l.addr, here}:
		select {
		case <-l.done: // it may have looked before
			l.drop()
		default:
		}
		return memConn{ours, here, l.addr}, nil
	case <-l.done:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memListener struct {
	n     *memNet
	addr  *net.TCPAddr
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Addr() net.Addr { return l.addr }

func (l *memListener) Close() error {
	l.once.Do(func() {
		l.n.mu.Lock()
		delete(l.n.ports, l.addr.Port)
		l.n.mu.Unlock()
		close(l.done)
		l.drop()
	})
	return nil
}

// drop closes what nobody will accept.
func (l *memListener) drop() {
	for {
		select {
		case c := <-l.conns:
			_ = c.Close()
		default:
			return
		}
	}
}

// memConn is a pipe with addresses.
type memConn struct {
	net.Conn
	local, remote net.Addr
}

func (c memConn) LocalAddr() net.Addr  { return c.local }
func (c memConn) RemoteAddr() net.Addr { return c.remote }
