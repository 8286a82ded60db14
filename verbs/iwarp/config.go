package iwarp

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// CRCPolicy says when MPA checksums are used. RFC 5044 uses them on a connection when either side asks for them.
type CRCPolicy uint8

const (
	// CRCAuto asks every peer for checksums and waives them where the peer is of this implementation and waives them
	// too: for those whose layer above checks its payload anyway.
	CRCAuto CRCPolicy = iota
	// CRCOn always has checksums.
	CRCOn
	// CRCOff never asks for checksums; a peer that asks gets them.
	CRCOff
)

func (p CRCPolicy) String() string {
	switch p {
	case CRCAuto:
		return "auto"
	case CRCOn:
		return "on"
	case CRCOff:
		return "off"
	}
	return fmt.Sprint(uint8(p))
}

// Config is what a device is made of. The zero value is a good device. Where a number says so, 0 is the default and a
// negative value means none.
type Config struct {
	Name string // of the device, default "iwarp"

	// Strict leaves the vendor extension out: no offer is made and none is answered.
	Strict bool
	CRC    CRCPolicy
	// MPARevision is 2 (RFC 6581) or 1 (RFC 5044) for connections that we start; 0 is 2, and 1 where the peer refuses
	// 2. Both are always accepted from a peer.
	MPARevision int
	// SegmentSize is the payload of a DDP segment between two of this implementation, in bytes: 4 KiB to 16 MiB,
	// default 1 MiB (64 KiB with checksums at most). For other peers it follows the path's MSS.
	SegmentSize int

	// HandshakeTimeout bounds the exchange of MPA frames, on both sides, default 5 s. Listeners log at Info, once a second
	// at most, whom they refuse, and how many more they have refused since.
	HandshakeTimeout time.Duration
	// Linger is how long a dead connection waits for the peer to read our last words and close, default 1 s. It holds
	// nothing of the QP's meanwhile.
	Linger time.Duration
	// PeerTimeout is when a TCP connection whose peer does not answer is given up, default 30 s; negative: when the
	// system thinks so, which takes many minutes. Whole seconds of it count.
	PeerTimeout time.Duration
	// Backlog is how many handshakes and unanswered connection requests one listener holds, default 128. Further ones
	// wait in the network.
	Backlog int

	// Pin locks registered memory (mlock), against RLIMIT_MEMLOCK.
	Pin bool

	// Limits, for resource exhaustion as on an adapter. 0: default; negative: none at all of the kind.
	MaxPD      int // default 32768
	MaxQP      int // default 65536
	MaxCQ      int // default 65536
	MaxMR      int // default 1048576, at most 16777215; windows and scoped keys count too
	MaxMW      int // default 262144
	MaxSRQ     int // default 4096
	MaxCQE     int // entries of one CQ, default 4194304
	MaxQPWR    int // entries of one queue, default 65536
	MaxSRQWR   int // default 1048576
	MaxSGE     int // default 32
	MaxInline  int // bytes, default 512
	MaxIRD     int // default 128, at most 16383
	MaxORD     int // default 128, at most 16383
	MaxMRSize  int // bytes of one region, default 1 TiB
	MaxPages   int // 4 KiB translations of all regions, default 1<<30
	MaxMsgSize int // bytes of one message, default and at most 2 GiB

	// Dial and Listen replace TCP. Connections that are not *net.TCPConn cost a copy.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Listen func(ctx context.Context, addr string) (net.Listener, error)

	Logger *slog.Logger // nil: silent

	Core verbs.Config // of Open; its Logger is the one above if nil
}

const (
	pageSize       = 4096
	segmentDefault = 1 << 20
	segmentMin     = 4 << 10
	segmentMax     = 16 << 20
	segmentCRC     = 60 << 10 // with checksums: a READ response's snapshot fits one bulk buffer
)

// withDefaults returns the effective configuration, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	def := func(v *int, d, limit int) {
		if *v == 0 {
			*v = d
		}
		*v = min(max(*v, 0), limit)
	}
	if c.Name == "" {
		c.Name = "iwarp"
	}
	if c.MPARevision < 0 || c.MPARevision > 2 {
		return c, fmt.Errorf("iwarp: MPARevision %d: %w: use 0, 1 or 2", c.MPARevision, driver.ErrInvalid)
	}
	if c.SegmentSize == 0 {
		c.SegmentSize = segmentDefault
	}
	if c.SegmentSize < segmentMin || c.SegmentSize > segmentMax {
		return c, fmt.Errorf("iwarp: SegmentSize %d: %w: from %d to %d", c.SegmentSize, driver.ErrInvalid, segmentMin, segmentMax)
	}
	if c.CRC > CRCOff {
		return c, fmt.Errorf("iwarp: CRC policy %v: %w", c.CRC, driver.ErrInvalid)
	}
	if c.HandshakeTimeout <= 0 {
		c.HandshakeTimeout = 5 * time.Second
	}
	if c.Linger <= 0 {
		c.Linger = time.Second
	}
	if c.PeerTimeout == 0 {
		c.PeerTimeout = 30 * time.Second
	}
	if c.Backlog <= 0 {
		c.Backlog = 128
	}
	def(&c.MaxPD, 32768, 1<<24)
	def(&c.MaxQP, 65536, 1<<24-1)
	def(&c.MaxCQ, 65536, 1<<24)
	def(&c.MaxMR, 1<<20, 1<<24-1)
	def(&c.MaxMW, 1<<18, 1<<24-1)
	def(&c.MaxSRQ, 4096, 1<<24)
	def(&c.MaxCQE, 1<<22, 1<<30)
	def(&c.MaxQPWR, 1<<16, 1<<24)
	def(&c.MaxSRQWR, 1<<20, 1<<24)
	def(&c.MaxSGE, 32, maxSGE)
	def(&c.MaxInline, 512, 1<<16)
	def(&c.MaxIRD, 128, wire.MaxDepth)
	def(&c.MaxORD, 128, wire.MaxDepth)
	def(&c.MaxMRSize, min(1<<40, math.MaxInt), math.MaxInt)
	def(&c.MaxPages, 1<<30, math.MaxInt)
	def(&c.MaxMsgSize, min(1<<31, math.MaxInt), min(1<<31, math.MaxInt))
	if c.Dial == nil {
		var d net.Dialer
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if c.Listen == nil {
		var l net.ListenConfig
		c.Listen = func(ctx context.Context, addr string) (net.Listener, error) { return l.Listen(ctx, "tcp", addr) }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
