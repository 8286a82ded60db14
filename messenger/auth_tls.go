package messenger

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// AuthTLS is mutual TLS 1.3, carried in the authentication frames: both sides
// show a certificate, and the keys of the connection come from TLS's exporter.
// After the exchange TLS is gone; ModeCRC or ModeSecure protects what follows,
// bound to who the peers are.
//
// It is a method of this project's own (0x41720001), offered only to peers of
// this project. Its functions are called in the handshake, on the goroutine or
// poller that runs it, so that certificates and authorities may be exchanged at
// any time; they must not wait for anything.
type AuthTLS struct {
	// Certificate returns what this side shows, its key included. Required.
	Certificate func() (*tls.Certificate, error)
	// Roots returns the authorities that peers' certificates have to come from;
	// those of the system never count. Required.
	Roots func() (*x509.CertPool, error)
	// Verify decides whether the owner of cert, which an authority vouches for,
	// may be peer. Number -1: a peer without a number. Default: VerifyEntityName.
	Verify func(peer EntityName, cert *x509.Certificate) error
	// Identity makes Connection.Identity of cert, which has been found to be
	// peer's. Default: there is none.
	Identity func(peer EntityName, cert *x509.Certificate) any
}

var _ Auth = (*AuthTLS)(nil)

const (
	methodTLS = uint32(msgr2.AuthTLS)
	// tlsALPN keeps certificates of other services' connections from being of
	// use here, and ours there.
	tlsALPN     = "argonaut-msgr2"
	tlsExporter = "EXPORTER-argonaut-msgr2"
	// maxTLSBytes bounds what a peer may send before it is authenticated, in
	// bytes: its certificates above all.
	maxTLSBytes = 32 << 10
)

// A payload of the method:
//
//	u8 flags | le64 number of the sender, only in its first payload | bytes of TLS
//
// tlsMore: more bytes follow; the peer answers with a payload without any.
const (
	tlsMore      = 1
	tlsNumberLen = 8
)

// Method implements Auth.
func (*AuthTLS) Method() uint32 { return methodTLS }

// Keyed implements Auth.
func (*AuthTLS) Keyed() bool { return true }

// Client implements Auth.
func (a *AuthTLS) Client(i AuthInfo) AuthStep { return a.begin(i, true) }

// Server implements Auth.
func (a *AuthTLS) Server(i AuthInfo) AuthStep { return a.begin(i, false) }

// VerifyEntityName accepts a certificate with the DNS name "osd.3" for osd.3, and
// one with "osd.*" for OSDs of any number and of none.
func VerifyEntityName(peer EntityName, cert *x509.Certificate) error {
	if slices.Contains(cert.DNSNames, peer.Type.String()+".*") || (peer.Num >= 0 && slices.Contains(cert.DNSNames, peer.String())) {
		return nil
	}
	return fmt.Errorf("%w: the certificate of %q is for %q, not for %v", ErrAuth, cert.Subject.CommonName, cert.DNSNames, peer)
}

// tlsExchange is one side of one exchange.
type tlsExchange struct {
	a       *AuthTLS
	i       AuthInfo
	client  bool
	peer    EntityName // as it says, in its first payload
	heard   bool       // it has come
	spoke   bool       // ours has gone
	bytes   int        // of TLS, from the peer
	pipe    tlsPipe
	conn    *tls.Conn
	over    chan error // the end of the handshake; capacity 1
	done    bool       // it has ended well
	started bool
}

func (a *AuthTLS) begin(i AuthInfo, client bool) AuthStep {
	x := &tlsExchange{a: a, i: i, client: client, over: make(chan error, 1)}
	x.pipe = tlsPipe{want: make(chan struct{}), feed: make(chan struct{}), ended: i.Ended}
	return x.step
}

func (x *tlsExchange) step(in []byte, last bool) (out []byte, r AuthResult, err error) {
	more := false
	if in != nil || !x.client {
		if more, err = x.hear(in); err != nil {
			return nil, r, err
		}
	}
	if !more {
		if err := x.run(); err != nil {
			return nil, r, err
		}
	}
	switch {
	case last:
		if !x.done || len(x.pipe.out) > 0 {
			return nil, r, fmt.Errorf("%w: peer has ended TLS too early", ErrAuth)
		}
		r, err = x.result()
		return nil, r, err
	case x.done && !x.client && len(x.pipe.out) == 0:
		r, err = x.result()
	case x.done && x.client && !more && len(x.pipe.out) == 0 && x.spoke:
		return nil, r, fmt.Errorf("%w: peer goes on after the end of TLS", ErrAuth)
	}
	return x.say(), r, err
}

// hear takes a payload of the peer.
func (x *tlsExchange) hear(in []byte) (more bool, err error) {
	if len(in) < 1 {
		return false, fmt.Errorf("%w: empty payload of method tls", ErrAuth)
	}
	more = in[0]&tlsMore != 0
	in = in[1:]
	if !x.heard {
		if len(in) < tlsNumberLen {
			return false, fmt.Errorf("%w: first payload of method tls of %d bytes", ErrAuth, len(in))
		}
		x.heard, x.peer = true, EntityName{x.i.Peer, int64(binary.LittleEndian.Uint64(in))}
		if x.peer.Num < 0 {
			x.peer.Num = -1
		}
		in = in[tlsNumberLen:]
	}
	if x.bytes += len(in); x.bytes > maxTLSBytes {
		return false, fmt.Errorf("%w: more than %d bytes of TLS", ErrAuth, maxTLSBytes)
	}
	x.pipe.in = append(x.pipe.in, in...)
	return more, nil
}

// say is our next payload.
func (x *tlsExchange) say() []byte {
	b := []byte{0}
	if !x.spoke {
		x.spoke = true
		b = binary.LittleEndian.AppendUint64(b, uint64(x.i.Self.Num))
	}
	n := min(len(x.pipe.out), MaxAuthPayload-len(b))
	b = append(b, x.pipe.out[:n]...)
	if x.pipe.out = x.pipe.out[n:]; len(x.pipe.out) > 0 {
		b[0] |= tlsMore
	}
	return b
}

// run lets TLS go on with what has come, until it wants more or has ended. It
// computes only.
func (x *tlsExchange) run() error {
	switch {
	case x.done:
		return nil
	case !x.started:
		if err := x.start(); err != nil {
			return err
		}
	case len(x.pipe.in) == 0:
		return nil // it was only told to go on speaking
	default:
		select {
		case x.pipe.feed <- struct{}{}:
		case <-x.i.Ended:
			return ErrClosed
		}
	}
	select {
	case <-x.pipe.want:
		return nil
	case err := <-x.over:
		if err != nil {
			return fmt.Errorf("%w: TLS: %w", ErrAuth, err)
		}
		x.done = true
		return nil
	}
}

// start begins the handshake. Its goroutine ends with it, or with the
// messenger's handshake.
func (x *tlsExchange) start() error {
	if x.a.Certificate == nil || x.a.Roots == nil {
		return fmt.Errorf("%w: AuthTLS needs Certificate and Roots", ErrAuth)
	}
	cert, err := x.a.Certificate()
	if err != nil {
		return fmt.Errorf("%w: our certificate: %w", ErrAuth, err)
	}
	roots, err := x.a.Roots()
	if err == nil && roots == nil {
		err = errors.New("there are none")
	}
	if err != nil {
		return fmt.Errorf("%w: our authorities: %w", ErrAuth, err)
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{tlsALPN},
		// Names are entities', not hosts': verify checks all that TLS would.
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return x.verify(s, roots) },
		// Each exchange proves anew who the peer is.
		SessionTicketsDisabled: true,
	}
	if x.client {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		x.conn = tls.Client(&x.pipe, cfg)
	} else {
		cfg.Certificates = []tls.Certificate{*cert}
		cfg.ClientAuth = tls.RequireAnyClientCert
		x.conn = tls.Server(&x.pipe, cfg)
	}
	x.started = true
	go func() { x.over <- x.conn.HandshakeContext(context.Background()) }()
	return nil
}

// verify checks that an authority vouches for the peer's certificate, and that
// the certificate is for the entity that the peer says it is.
func (x *tlsExchange) verify(s tls.ConnectionState, roots *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("peer shows no certificate")
	}
	if s.NegotiatedProtocol != tlsALPN {
		return fmt.Errorf("peer speaks %q, not %q", s.NegotiatedProtocol, tlsALPN)
	}
	usage := x509.ExtKeyUsageClientAuth
	if x.client {
		usage = x509.ExtKeyUsageServerAuth
	}
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, c := range s.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := s.PeerCertificates[0].Verify(opts); err != nil {
		return err
	}
	if x.a.Verify != nil {
		return x.a.Verify(x.peer, s.PeerCertificates[0])
	}
	return VerifyEntityName(x.peer, s.PeerCertificates[0])
}

// result is the keys of the connection.
func (x *tlsExchange) result() (AuthResult, error) {
	s := x.conn.ConnectionState()
	keys, err := s.ExportKeyingMaterial(tlsExporter, nil, 32+64)
	if err != nil {
		return AuthResult{}, fmt.Errorf("%w: %w", ErrAuth, err)
	}
	r := AuthResult{Done: true, Peer: x.peer, SessionKey: keys[:32], Secret: keys[32:]}
	if x.a.Identity != nil {
		r.Identity = x.a.Identity(x.peer, s.PeerCertificates[0])
	}
	return r, nil
}

// tlsPipe is the net.Conn of the handshake: bytes that came in frames, and bytes
// that will go in frames. Its two users take turns: TLS runs until it wants what
// is not there, then the exchange has in and out to itself until it feeds.
type tlsPipe struct {
	in, out    []byte
	want, feed chan struct{}
	ended      <-chan struct{}
}

func (p *tlsPipe) Read(b []byte) (int, error) {
	if len(p.in) == 0 {
		select {
		case p.want <- struct{}{}:
		case <-p.ended:
			return 0, ErrClosed
		}
		select {
		case <-p.feed:
		case <-p.ended:
			return 0, ErrClosed
		}
	}
	n := copy(b, p.in)
	p.in = p.in[n:]
	return n, nil
}

func (p *tlsPipe) Write(b []byte) (int, error) {
	p.out = append(p.out, b...)
	return len(b), nil
}

func (p *tlsPipe) Close() error                     { return nil }
func (p *tlsPipe) LocalAddr() net.Addr              { return tlsAddr{} }
func (p *tlsPipe) RemoteAddr() net.Addr             { return tlsAddr{} }
func (p *tlsPipe) SetDeadline(time.Time) error      { return nil }
func (p *tlsPipe) SetReadDeadline(time.Time) error  { return nil }
func (p *tlsPipe) SetWriteDeadline(time.Time) error { return nil }

// tlsAddr is the address of a peer in frames.
type tlsAddr struct{}

func (tlsAddr) Network() string { return "msgr2" }
func (tlsAddr) String() string  { return "authentication frames" }
