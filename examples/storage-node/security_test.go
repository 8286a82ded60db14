package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// authority signs certificates into files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.make(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.write("ca.pem", "CERTIFICATE", a.cert.Raw)
	return a
}

func (a *authority) make(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return cert, key
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// flags makes a certificate for a DNS name, and returns the flags that show it and believe in a.
func (a *authority) flags(file, name string, more ...string) []string {
	cert, key := a.make(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	return append([]string{
		"--auth", "tls", "--ca", filepath.Join(a.dir, "ca.pem"),
		"--cert", a.write(file+".pem", "CERTIFICATE", cert.Raw), "--key", a.write(file+".key", "PRIVATE KEY", der),
	}, more...)
}

// Every command over TLS, with and without encryption, on each transport.
func TestTLS(t *testing.T) {
	for _, device := range devices {
		for _, secure := range []bool{false, true} {
			name := device
			var more []string
			if secure {
				name, more = device+" secure", []string{"--secure"}
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ca := newAuthority(t, "test")
				p := startNode(t, t.TempDir(), append(listen(device), ca.flags("node", "osd.0", more...)...)...)
				flags := ca.flags("client", "client.*", more...)
				with := func(args ...string) []string { return append(to(p, args...), flags...) }
				out := filepath.Join(t.TempDir(), "out")
				for _, n := range []int64{0, 1, 32 << 10, 32<<10 + 1, 1 << 20, 5<<20 + 12345} {
					in := randomFile(t, n)
					ok(t, nil, with("put", "key", in)...)
					ok(t, nil, with("get", "key", out)...)
					sameFiles(t, in, out)
				}
				data, err := os.ReadFile(out)
				require.NoError(t, err)
				require.True(t, string(data[100:3_000_001]) == ok(t, nil, with("get", "--range", "100-3000000", "key", "-")...))
				require.Contains(t, ok(t, nil, with("ls")...), "key")
				require.Contains(t, ok(t, nil, with("stat", "key")...), "5255225")
				ok(t, nil, with("rm", "key")...)
				require.Contains(t, fails(t, nil, with("get", "key", "-")...), "no such")
			})
		}
	}
}

// Who is not known, or is somebody else, learns so at once, and does nothing.
func TestTLSRefusals(t *testing.T) {
	for _, device := range devices {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			ca, other := newAuthority(t, "test"), newAuthority(t, "other")
			p := startNode(t, t.TempDir(), append(listen(device), ca.flags("node", "osd.0", "--secure")...)...)
			for name, flags := range map[string][]string{
				"without a certificate":     nil,
				"of another authority":      other.flags("client", "client.*"),
				"a node's certificate":      ca.flags("osd", "osd.1"),
				"who trusts another":        append(ca.flags("mine", "client.*"), "--ca", filepath.Join(other.dir, "ca.pem")),
				"a client of another class": ca.flags("mds", "mds.*"),
			} {
				said := fails(t, bytes.NewReader(nil), append(to(p, "put", "key", "-", "--timeout", "20s"), flags...)...)
				require.Contains(t, said, "authentication failed", name)
			}
			require.NotContains(t, ok(t, nil, append(to(p, "ls"), ca.flags("client", "client.*", "--secure")...)...), "key")

			said := fails(t, nil, to(p, "ls")...)
			require.Contains(t, said, "error: the node wants --auth tls --secure, with")
			require.NotContains(t, said, "lost the connection")

			open := startNode(t, t.TempDir(), listen(device)...)
			said = fails(t, nil, append(to(open, "ls"), ca.flags("client", "client.*", "--secure")...)...)
			require.Contains(t, said, "error: the node knows no certificates: leave --auth tls")
			require.NotContains(t, said, "lost the connection")

			plain := startNode(t, t.TempDir(), append(listen(device), ca.flags("node2", "osd.0")...)...)
			require.Contains(t, ok(t, nil, append(to(plain, "stat"), ca.flags("c2", "client.*", "--secure")...)...), "arena")
			require.Contains(t, ok(t, nil, append(to(plain, "stat"), ca.flags("c2", "client.*")...)...), "arena")
		})
	}
}

// A node takes new certificates and authorities while it runs.
func TestTLSRotation(t *testing.T) {
	t.Parallel()
	ca, next := newAuthority(t, "test"), newAuthority(t, "next")
	p := startNode(t, t.TempDir(), append(listen("tcp"), ca.flags("node", "osd.0")...)...)
	ok(t, nil, append(to(p, "ls"), ca.flags("client", "client.*")...)...)
	fails(t, nil, append(to(p, "ls"), next.flags("client", "client.*")...)...)
	next.flags("node", "osd.0")
	for _, name := range []string{"ca.pem", "node.pem", "node.key"} {
		b, err := os.ReadFile(filepath.Join(next.dir, name))
		require.NoError(t, err)
		fresh := filepath.Join(ca.dir, name+".new")
		require.NoError(t, os.WriteFile(fresh, b, 0o600))
		require.NoError(t, os.Rename(fresh, filepath.Join(ca.dir, name)))
	}
	ok(t, nil, append(to(p, "ls"), next.flags("client", "client.*")...)...)
}

func TestTLSFlags(t *testing.T) {
	ca := newAuthority(t, "test")
	flags := ca.flags("client", "client.*")
	nowhere := []string{"ls", "--server", "127.0.0.1:1"}
	for _, c := range []struct {
		args   []string
		status int
		said   string
	}{
		{[]string{"--secure"}, exitUsage, "add --auth tls"},
		{[]string{"--cert", "x"}, exitUsage, "of no use without --auth tls"},
		{[]string{"--auth", "tls"}, exitUsage, "takes --cert, --key and --ca"},
		{append(flags[:len(flags):len(flags)], "--cert", "/nowhere"), exitError, "the certificate: "},
		{append(flags[:len(flags):len(flags)], "--ca", flags[len(flags)-1]), exitError, "has no certificate in PEM"},
	} {
		r := exec1(nil, append(nowhere, c.args...)...)
		require.Equal(t, c.status, r.status, r.stderr)
		require.Contains(t, r.stderr, c.said)
	}
	r := exec1(nil, append(nowhere, "--auth", "password")...)
	require.Equal(t, exitUsage, r.status)
}
