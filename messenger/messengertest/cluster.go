package messengertest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// Config is what a cluster is made of. The zero value of a field is its default.
type Config struct {
	// Nodes is how many there are, osd.0 and so on, on hosts 10.0.0.1 and so
	// on. Default 2.
	Nodes int
	// Net is the network. Default: a new one, with Seed.
	Net  *Network
	Seed uint64
	// Scheme is what the nodes bind to. Default tcp; another one needs
	// Transports.
	Scheme string
	// Addr is an IP address of a real network that all nodes bind to, with ports
	// of their own. Default: the network in memory, each node on its host.
	Addr string
	// Transports makes those of a node, over its network: for user-space iWARP a
	// device with this Dial and Listen. (They are the caller's, as this package
	// knows no device.)
	Transports func(t testing.TB, n *Node) []messenger.Transport
	// Budget of each node's arena in bytes. Default 64 MiB.
	Budget int64
	// Configure may change a node's configuration before it is made, Setup adds
	// dispatchers and policies before it is bound.
	Configure func(n *Node, cfg *messenger.Config)
	Setup     func(n *Node)
	// Logger of all nodes, with a node attribute. nil: silent.
	Logger *slog.Logger
}

// Cluster is some messengers on one network.
type Cluster struct {
	Net   *Network
	Nodes []*Node
}

// Node is one of them. Messenger is nil until it has been made.
type Node struct {
	*messenger.Messenger
	Host  string
	Arena *buffer.Arena
	// Dial and Listen are the node's view of the network.
	Dial   func(ctx context.Context, hostport string) (net.Conn, error)
	Listen func(ctx context.Context, hostport string) (net.Listener, error)
}

// closeIn bounds the end of a node and of its memory.
const closeIn = 30 * time.Second

// New makes a cluster, whose nodes are bound. When the test ends they are
// closed, and all memory has to be back: otherwise the test fails.
func New(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	if cfg.Nodes == 0 {
		cfg.Nodes = 2
	}
	if cfg.Net == nil {
		cfg.Net = NewNetwork(cfg.Seed)
	}
	if cfg.Scheme == "" {
		cfg.Scheme = messenger.SchemeTCP
	}
	if cfg.Budget == 0 {
		cfg.Budget = 64 << 20
	}
	cl := &Cluster{Net: cfg.Net}
	for i := range cfg.Nodes {
		cl.Nodes = append(cl.Nodes, cl.node(t, cfg, i))
	}
	return cl
}

func (cl *Cluster) node(t testing.TB, cfg Config, i int) *Node {
	t.Helper()
	host := fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)
	n := &Node{Host: host, Dial: cl.Net.Dialer(host), Listen: cl.Net.Listener(host)}
	var err error
	if n.Arena, err = buffer.New(buffer.Config{Budget: cfg.Budget}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeIn)
		defer cancel()
		if err := n.Arena.Close(ctx); err != nil {
			t.Errorf("%s: memory is still held: %v", host, err)
		}
	})
	mc := messenger.Config{
		Name: messenger.EntityName{Type: messenger.OSD, Num: int64(i)}, Arena: n.Arena,
	}
	at := cfg.Addr
	if at == "" {
		at = host
		mc.DialStream, mc.ListenStream = n.Dial, n.Listen
	}
	if cfg.Logger != nil {
		mc.Logger = cfg.Logger.With("node", i)
	}
	if cfg.Transports != nil {
		mc.Transports = cfg.Transports(t, n)
	}
	if cfg.Configure != nil {
		cfg.Configure(n, &mc)
	}
	if n.Messenger, err = messenger.New(mc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Messenger.Close(); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	})
	if cfg.Setup != nil {
		cfg.Setup(n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeIn)
	defer cancel()
	if err := n.Bind(ctx, messenger.AddrVec{{URL: cfg.Scheme + "://" + net.JoinHostPort(at, "0")}}); err != nil {
		t.Fatal(err)
	}
	return n
}
