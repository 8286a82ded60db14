package messenger

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testCA signs certificates for tests.
type testCA struct {
	t    testing.TB
	cert *x509.Certificate
	key  crypto.Signer
}

var serials atomic.Int64

func newCA(t testing.TB, name string) *testCA {
	ca := &testCA{t: t}
	ca.cert, ca.key = ca.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return ca
}

// sign completes a template, and signs it, itself if ca has no key yet.
func (ca *testCA) sign(c *x509.Certificate) (*x509.Certificate, crypto.Signer) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(ca.t, err)
	c.SerialNumber = big.NewInt(serials.Add(1))
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	c.NotBefore = c.NotAfter.Add(-2 * time.Hour)
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	require.NoError(ca.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(ca.t, err)
	return cert, key
}

// issue makes a certificate for DNS names; change may alter the template.
func (ca *testCA) issue(change func(*x509.Certificate), names ...string) *tls.Certificate {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(c)
	}
	cert, key := ca.sign(c)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func (ca *testCA) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.cert)
	return p
}

// method is AuthTLS with a certificate, believing in ca.
func (ca *testCA) method(c *tls.Certificate) *AuthTLS {
	return &AuthTLS{
		Certificate: func() (*tls.Certificate, error) { return c, nil },
		Roots:       func() (*x509.CertPool, error) { return ca.pool(), nil },
	}
}

func tlsConfig(a *AuthTLS, mode Mode) Config {
	return Config{Auth: []Auth{a}, Modes: []Mode{mode}}
}

func TestTLS(t *testing.T) {
	ca := newCA(t, "test")
	carriers(t, func(t *testing.T, scheme string) {
		for _, mode := range []Mode{ModeCRC, ModeSecure} {
			t.Run(mode.String(), func(t *testing.T) {
				ccfg := tlsConfig(ca.method(ca.issue(nil, "client.7")), mode)
				ccfg.Name = EntityName{Client, 7}
				p := newPair(t, scheme, tlsConfig(ca.method(ca.issue(nil, "osd.0")), mode), ccfg, nil, nil)
				require.Equal(t, mode, p.c.Mode())
				m := NewMessage(1)
				m.Front = append(m.Front, "hello"...)
				r, err := p.c.Call(soon(t), m)
				require.NoError(t, err)
				require.Equal(t, "hello", string(r.Front))
				r.Release()
				name, _, _ := receiveOne(t, p.accepted, "connection").Peer()
				require.Equal(t, EntityName{Client, 7}, name)
				name, _, _ = p.c.Peer()
				require.Equal(t, EntityName{OSD, 0}, name)
			})
		}
	})
}

// A client without a number is the one that the server has named it.
func TestTLSWithoutANumber(t *testing.T) {
	ca := newCA(t, "test")
	p := newPair(t, SchemeTCP, tlsConfig(ca.method(ca.issue(nil, "osd.*")), ModeSecure),
		tlsConfig(ca.method(ca.issue(nil, "client.*")), ModeSecure), nil, nil)
	name, _, _ := receiveOne(t, p.accepted, "connection").Peer()
	require.Equal(t, Client, name.Type)
	require.Positive(t, name.Num)
}

// tlsRefused makes sure that a client does not get in, and that the right side
// says why.
func tlsRefused(t *testing.T, scfg, ccfg Config, what string) {
	t.Helper()
	for _, scheme := range []string{SchemeTCP, schemeDevice} {
		tlsRefusedOn(t, scheme, scfg, ccfg, what)
	}
}

func tlsRefusedOn(t *testing.T, scheme string, scfg, ccfg Config, what string) {
	t.Helper()
	ccfg.ConnectTimeout, scfg.Name = 5*time.Second, EntityName{OSD, 0}
	var log syncSlice[string]
	scfg.Logger = newLogger(&log)
	server, client := newMessenger(t, scfg), newMessenger(t, ccfg)
	require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	err = c.Ready(soon(t))
	require.ErrorIs(t, err, ErrAuth)
	if strings.Contains(err.Error(), "the peer says") {
		require.NotContains(t, err.Error(), what, "who has not authenticated learns no more than that")
		require.Eventually(t, func() bool { return strings.Contains(log.String(), what) }, patience, time.Millisecond, "the log says why")
	} else {
		require.ErrorContains(t, err, what, "who has refused knows why; the server says %v", &log)
	}
	require.Positive(t, server.Stats().AuthFailures+client.Stats().AuthFailures)
}

func TestTLSRefusals(t *testing.T) {
	ca, other := newCA(t, "test"), newCA(t, "other")
	server := func() Config { return tlsConfig(ca.method(ca.issue(nil, "osd.0")), ModeSecure) }
	client := func(c *tls.Certificate) Config { return tlsConfig(ca.method(c), ModeSecure) }
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	usage := func(u x509.ExtKeyUsage) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{u} }
	}
	good := func() *tls.Certificate { return ca.issue(nil, "client.*") }

	t.Run("client of another authority", func(t *testing.T) {
		tlsRefused(t, server(), client(other.issue(nil, "client.*")), "unknown authority")
	})
	t.Run("server of another authority", func(t *testing.T) {
		tlsRefused(t, tlsConfig(ca.method(other.issue(nil, "osd.0")), ModeSecure), client(good()), "unknown authority")
	})
	t.Run("expired client", func(t *testing.T) {
		tlsRefused(t, server(), client(ca.issue(expired, "client.*")), "expired")
	})
	t.Run("expired server", func(t *testing.T) {
		tlsRefused(t, tlsConfig(ca.method(ca.issue(expired, "osd.0")), ModeSecure), client(good()), "expired")
	})
	t.Run("client as server", func(t *testing.T) {
		tlsRefused(t, tlsConfig(ca.method(ca.issue(usage(x509.ExtKeyUsageClientAuth), "osd.0")), ModeSecure), client(good()), "usage")
	})
	t.Run("server as client", func(t *testing.T) {
		tlsRefused(t, server(), client(ca.issue(usage(x509.ExtKeyUsageServerAuth), "client.*")), "usage")
	})
	t.Run("another client", func(t *testing.T) {
		cfg := client(ca.issue(nil, "client.8"))
		cfg.Name = EntityName{Client, 7}
		tlsRefused(t, server(), cfg, "not for client.7")
	})
	t.Run("another server", func(t *testing.T) {
		tlsRefused(t, tlsConfig(ca.method(ca.issue(nil, "osd.1")), ModeSecure), client(good()), "not for osd.0")
	})
	t.Run("another kind", func(t *testing.T) {
		tlsRefused(t, server(), client(ca.issue(nil, "osd.*")), "not for client")
	})
	t.Run("the user says no", func(t *testing.T) {
		a := ca.method(ca.issue(nil, "osd.0"))
		a.Verify = func(EntityName, *x509.Certificate) error { return errors.New("not on Sundays") }
		tlsRefused(t, tlsConfig(a, ModeSecure), client(good()), "not on Sundays")
	})
	t.Run("no certificate", func(t *testing.T) {
		tlsRefused(t, server(), client(&tls.Certificate{}), "certificate")
	})
	t.Run("the key of another", func(t *testing.T) {
		c := good()
		c.PrivateKey = good().PrivateKey
		tlsRefused(t, server(), client(c), "signature")
	})
	t.Run("no authorities", func(t *testing.T) {
		a := ca.method(ca.issue(nil, "osd.0"))
		a.Roots = func() (*x509.CertPool, error) { return nil, nil }
		tlsRefused(t, tlsConfig(a, ModeSecure), client(good()), "authorities")
	})
	t.Run("no method in common", func(t *testing.T) {
		tlsRefused(t, server(), Config{Auth: []Auth{AuthNone{}}}, "refused methods")
	})
	t.Run("crc towards secure", func(t *testing.T) {
		tlsRefused(t, server(), tlsConfig(ca.method(good()), ModeCRC), "refused methods")
	})
}

// Certificates and authorities are asked for anew with each connection.
func TestTLSRotation(t *testing.T) {
	old, fresh := newCA(t, "old"), newCA(t, "new")
	var now atomic.Pointer[AuthTLS]
	now.Store(old.method(old.issue(nil, "osd.0")))
	a := &AuthTLS{
		Certificate: func() (*tls.Certificate, error) { return now.Load().Certificate() },
		Roots:       func() (*x509.CertPool, error) { return now.Load().Roots() },
	}
	scfg := tlsConfig(a, ModeSecure)
	scfg.Name = EntityName{OSD, 0}
	server := newMessenger(t, scfg)
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	connect := func(ca *testCA) error {
		client := newMessenger(t, tlsConfig(ca.method(ca.issue(nil, "client.*")), ModeSecure))
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		return c.Ready(soon(t))
	}
	require.NoError(t, connect(old))
	require.ErrorIs(t, connect(fresh), ErrAuth)
	now.Store(fresh.method(fresh.issue(nil, "osd.0")))
	require.NoError(t, connect(fresh))
	require.ErrorIs(t, connect(old), ErrAuth)
}

// Certificates larger than a frame travel in several; ones without measure do
// not.
func TestTLSLargeCertificates(t *testing.T) {
	ca := newCA(t, "test")
	big := func(n int) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			for len(c.DNSNames)*20 < n {
				c.DNSNames = append(c.DNSNames, "a-name-of-no-use-.x")
			}
		}
	}
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, tlsConfig(ca.method(ca.issue(big(9000), "osd.0")), ModeSecure),
			tlsConfig(ca.method(ca.issue(big(14000), "client.*")), ModeSecure), nil, nil)
		r, err := p.c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
	})
	tlsRefused(t, tlsConfig(ca.method(ca.issue(nil, "osd.0")), ModeSecure),
		tlsConfig(ca.method(ca.issue(big(40000), "client.*")), ModeSecure), "more than 32768 bytes")
}

// A server with several methods serves peers of each; who has none of them
// learns what would do.
func TestSeveralMethods(t *testing.T) {
	ca := newCA(t, "test")
	tlsMethod := func(name string) Auth { return ca.method(ca.issue(nil, name)) }
	server := newMessenger(t, Config{
		Name: EntityName{OSD, 0}, Auth: []Auth{tlsMethod("osd.0"), sharedKey{"abc"}, AuthNone{}}, Modes: []Mode{ModeSecure, ModeCRC},
	})
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	for _, c := range []struct {
		name  string
		auth  []Auth
		modes []Mode
		want  Mode
	}{
		{"tls", []Auth{tlsMethod("client.*")}, []Mode{ModeCRC, ModeSecure}, ModeSecure},
		{"tls, crc alone", []Auth{tlsMethod("client.*")}, []Mode{ModeCRC}, ModeCRC},
		{"key", []Auth{sharedKey{"abc"}}, []Mode{ModeSecure}, ModeSecure},
		{"none", []Auth{AuthNone{}}, nil, ModeCRC},
		{"none is the second choice", []Auth{keyAuth{}, AuthNone{}}, []Mode{ModeCRC}, ModeCRC},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := newMessenger(t, Config{Auth: c.auth, Modes: c.modes}).ConnectTo(OSD, server.Addrs())
			require.NoError(t, err)
			require.NoError(t, conn.Ready(soon(t)))
			require.Equal(t, c.want, conn.Mode())
		})
	}
	conn, err := newMessenger(t, Config{Auth: []Auth{keyAuth{}}}).ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	require.ErrorIs(t, conn.Ready(soon(t)), ErrAuth)
}

func TestVerifyEntityName(t *testing.T) {
	cert := &x509.Certificate{DNSNames: []string{"osd.3", "mon.*"}}
	require.NoError(t, VerifyEntityName(EntityName{OSD, 3}, cert))
	require.NoError(t, VerifyEntityName(EntityName{Mon, 0}, cert))
	require.NoError(t, VerifyEntityName(EntityName{Mon, -1}, cert))
	for _, n := range []EntityName{{OSD, 33}, {OSD, -1}, {Client, 3}} {
		require.ErrorIs(t, VerifyEntityName(n, cert), ErrAuth)
	}
}

// Payloads from somebody who has no certificate, or speaks no TLS: refused, in
// bounded steps, and nothing is left running.
func FuzzTLSExchange(f *testing.F) {
	ca := newCA(f, "test")
	server, client := ca.method(ca.issue(nil, "osd.*")), ca.method(ca.issue(nil, "client.*"))
	ended := make(chan struct{})
	i := AuthInfo{Self: EntityName{Client, -1}, Peer: OSD, Ended: ended}
	first, _, err := client.Client(i)(nil, false)
	require.NoError(f, err)
	close(ended)
	f.Add(first, []byte{0}, true)
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 22, 3, 1}, []byte{0, 1, 2}, true)
	f.Add([]byte{0}, []byte{}, false)
	f.Fuzz(func(t *testing.T, one, two []byte, toServer bool) {
		over := make(chan struct{})
		defer close(over)
		i := AuthInfo{Self: EntityName{OSD, 0}, Peer: Client, Ended: over}
		step := server.Server(i)
		if !toServer {
			step = client.Client(i)
			if _, _, err := step(nil, false); err != nil {
				t.Fatal(err)
			}
		}
		for _, in := range [][]byte{one, two, one, two} {
			out, r, err := step(in, false)
			if err != nil {
				return
			}
			require.False(t, r.Done)
			require.LessOrEqual(t, len(out), MaxAuthPayload)
		}
		_, r, err := step(two, true)
		require.False(t, r.Done && err == nil)
	})
}
