package messenger

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
)

// Transport is one way to reach peers by RDMA, for the addresses of one scheme.
type Transport struct {
	// Scheme of the addresses that it serves: "iwarp" or "rdma", which are all that
	// peers can be told of; one Transport for each.
	Scheme string
	// Open makes the endpoint. The messenger has set the callbacks of cfg and
	// its Logger; Open may set what else it likes and passes it on. The endpoint
	// is the messenger's, which shuts it down; device and arena stay the
	// caller's, and must outlive the messenger.
	//
	//	Open: func(cfg conn.Config) (*conn.Endpoint, error) { return conn.NewEndpoint(dev, arena, cfg) }
	Open func(cfg conn.Config) (*conn.Endpoint, error)
}

// Config is how a Messenger works. The zero value of a field is its default;
// negative means off where the field says so. Name and Arena are required.
type Config struct {
	// Name of this entity. A client without a number has Num -1.
	Name EntityName
	// Nonce tells this incarnation of the entity from others, see EntityAddr. Default: random;
	// 0 for a monitor, as in Ceph, whose clients know its address alone.
	Nonce uint32
	// Arena gives the memory for payload that arrives on streams, and for
	// pulls and pushes there. The Data of what is sent comes from it, and the
	// Transports' endpoints use it too. It is borrowed and must outlive the
	// messenger.
	Arena *buffer.Arena
	// Transports by RDMA, the best first. Addresses tcp:// need none.
	Transports []Transport
	// Auth is the methods that are offered and accepted, in order of
	// preference. A list is as strong as its weakest method. Default: AuthNone
	// alone.
	Auth []Auth
	// Modes is the connection modes that are offered and accepted; the server's
	// order decides. ModeSecure needs a keyed method. Default: ModeCRC alone.
	Modes []Mode

	// Workers is how many handlers run at a time: 1 to 4096. Default: twice
	// GOMAXPROCS, at least 8, as handlers may wait for disks.
	Workers int
	// DispatchBytes bounds what has been received and not been released, over
	// all peers: bytes of front, middle and data, and 256 for each message.
	// Default 100 MiB; negative: no bound.
	DispatchBytes int64
	// MaxFront is the largest front or middle in bytes that is accepted on a
	// stream: up to 64 MiB. Default 16 MiB. (On RDMA both go in the head, which
	// is bounded by the endpoint.)
	MaxFront int
	// MaxData is the largest payload in bytes that is accepted on a stream.
	// Default 128 MiB; never more than half the arena can give is of use.
	MaxData int64
	// NoDataCRC offers to leave the payload without a checksum of the
	// messenger's, where the transport checks it. It takes effect towards peers
	// that offer it too, never towards Ceph.
	NoDataCRC bool

	// ConnectTimeout bounds one attempt to connect, dialing and handshake
	// each, and the handshake of a peer that connects. Default 10 s.
	ConnectTimeout time.Duration
	// BackoffMin and BackoffMax: attempts to connect are repeated after a pause
	// that doubles from the one to the other. Default 200 ms and 15 s.
	BackoffMin, BackoffMax time.Duration
	// IdleTimeout ends a connection on which nothing was sent or received but
	// keepalives. Default 15 min; negative: never.
	IdleTimeout time.Duration
	// KeepaliveInterval is the pause between keepalives that are sent by
	// themselves. Default 10 s; negative: none.
	KeepaliveInterval time.Duration
	// KeepaliveTimeout ends a connection from whose peer nothing has been
	// received for so long, though keepalives were sent. Default three times
	// KeepaliveInterval; negative: never.
	KeepaliveTimeout time.Duration
	// MaxHalfOpen bounds the peers that are in the handshake at a time,
	// MaxHalfOpenPerHost those of one IP address; more are refused. Default 256,
	// and a quarter of it, at least 16. On RDMA they take at most half of what the
	// endpoint has receive buffers for.
	MaxHalfOpen, MaxHalfOpenPerHost int

	// BindPorts is where Bind and Rebind find the port of an address with port 0: the
	// first that can be had. Default: any, as the system chooses. (Ceph:
	// ms_bind_port_min and max, 6800 to 7568 there.)
	BindPorts PortRange
	// BindRetries is how often Bind and Rebind try again to listen on an address,
	// each time on all of its ports, and BindRetryDelay the pause before. Default: not
	// at all; 5 s. (Ceph: ms_bind_retry_count, 3 there, and ms_bind_retry_delay.)
	BindRetries    int
	BindRetryDelay time.Duration
	// BindBeforeConnect has connections to tcp:// addresses come from the host that
	// is bound, the first that is not unspecified and of the peer's family, where
	// there is one. Default: as the routes are. (Ceph: ms_bind_before_connect.) On RDMA
	// it is the device's: one of an adapter has its own address, for that in software
	// see verbs/iwarp.Config.Dial.
	BindBeforeConnect bool

	// Resolve gives the addresses of a host that is a name, in the order in which
	// they are tried, each with its own ConnectTimeout, which bounds the call too.
	// It is called for each attempt to connect, by one goroutine per connection.
	// Default: net.DefaultResolver; a tcp:// name is then DialStream's to resolve,
	// as net.Dialer does, who tries its addresses, too.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// DialStream and ListenStream replace net.Dialer and net.ListenConfig for
	// tcp:// addresses: tests use them, and whoever needs a proxy.
	DialStream   func(ctx context.Context, hostport string) (net.Conn, error)
	ListenStream func(ctx context.Context, hostport string) (net.Listener, error)

	// TCPDelay leaves Nagle's algorithm on in tcp:// connections: what is small waits
	// for the acknowledgement of what is on its way. Default: it is off. (Ceph:
	// ms_tcp_nodelay = false.)
	TCPDelay bool
	// TCPReceiveBuffer is SO_RCVBUF of tcp:// sockets in bytes, as the system takes it:
	// Linux doubles it, bounds it by net.core.rmem_max, and tunes it no more by itself.
	// There it is set before connecting, so that the window can be as large; elsewhere
	// behind it. Default: the system's. (Ceph: ms_tcp_rcvbuf.)
	TCPReceiveBuffer int
	// SocketPriority is SO_PRIORITY of tcp:// sockets, 1 to 6, and with it, as Ceph has
	// it, their packets are of DSCP class CS6: for a messenger whose heartbeats are not
	// to wait behind payload, in the host's queues or the network's. Default: neither.
	// (Ceph: Messenger::set_socket_priority; SOCKET_PRIORITY_MIN_DELAY is 6.) Linux
	// alone; elsewhere New returns ErrNotSupported.
	//
	// The three are for the sockets that DialStream and ListenStream replace: with one
	// of these they are ErrInvalid. What the system refuses of them at a connection is
	// logged, and that goes on. On RDMA see verbs/iwarp.Config.Dial and the adapter's.
	SocketPriority int

	// Latencies has Messenger.Latencies measured: some 100 ns for each message.
	Latencies bool

	// SessionTimeout ends a lossless session, HandleReset saying so, that has had
	// no transport for so long: whatever it keeps for its peer is given up. Its
	// peer, should it come back, learns by HandleRemoteReset. Default: never, as
	// with Ceph, whose daemons mark such sessions down by what they know of the
	// cluster.
	SessionTimeout time.Duration

	// Inject makes things go wrong, for tests.
	Inject *Inject

	// Logger gets what no caller can be told, and at Info what becomes of sessions;
	// nothing per message. Each line has Name as "entity"; those about a Connection
	// have its ID as "conn", those about a connection of an endpoint conn.Conn.ID
	// as "link"; "session opened" and "session reconnected" have both. nil: silent.
	Logger *slog.Logger
}
