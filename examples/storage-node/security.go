package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger"
)

// security is the flags that say who may talk to whom, and how. Node and client have the same.
type security struct {
	Auth    string `default:"none" enum:"none,tls" help:"How both sides prove who they are: not at all, or by certificates."`
	Cert    string `placeholder:"FILE" help:"Our certificate, PEM, with what is between it and the authority. A node's is for osd.0 or osd.*, a client's for client.*, as DNS names."`
	KeyFile string `name:"key" placeholder:"FILE" help:"Its private key, PEM."`
	CA      string `name:"ca" placeholder:"FILE" help:"The authorities that the other side's certificate has to come from, PEM."`
	Secure  bool   `help:"Encrypt everything, and talk to nobody who does not. Takes --auth tls."`
}

// methods returns what goes into the messenger's configuration.
func (s *security) methods(log *slog.Logger) ([]messenger.Auth, []messenger.Mode, error) {
	if s.Auth != "tls" {
		if s.Secure {
			return nil, nil, usagef("--secure takes keys: add --auth tls with --cert, --key and --ca")
		}
		if s.Cert+s.KeyFile+s.CA != "" {
			return nil, nil, usagef("--cert, --key and --ca are of no use without --auth tls")
		}
		return nil, nil, nil
	}
	if s.Cert == "" || s.KeyFile == "" || s.CA == "" {
		return nil, nil, usagef("--auth tls takes --cert, --key and --ca")
	}
	cert := &fromFiles[*tls.Certificate]{log: log, files: []string{s.Cert, s.KeyFile}, read: func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(s.Cert, s.KeyFile)
		return &c, err
	}}
	roots := &fromFiles[*x509.CertPool]{log: log, files: []string{s.CA}, read: func() (*x509.CertPool, error) {
		pem, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, err
		}
		p := x509.NewCertPool()
		if !p.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", s.CA)
		}
		return p, nil
	}}
	// What is wrong with the files shall be said now, not to the first peer.
	if _, err := cert.get(); err != nil {
		return nil, nil, fmt.Errorf("the certificate: %w", err)
	}
	if _, err := roots.get(); err != nil {
		return nil, nil, fmt.Errorf("the authorities: %w", err)
	}
	modes := []messenger.Mode{messenger.ModeCRC, messenger.ModeSecure}
	if s.Secure {
		modes = []messenger.Mode{messenger.ModeSecure}
	}
	return []messenger.Auth{&messenger.AuthTLS{Certificate: cert.get, Roots: roots.get}}, modes, nil
}

// accepted finds what a node takes in the error of a messenger that it has refused.
var accepted = regexp.MustCompile(`accepts \[([a-z ]*)\] with modes \[([a-z ]*)\]`)

// explain puts in front of an error that is about s the flags that the node wants.
func (s *security) explain(err error) error {
	m := accepted.FindStringSubmatch(err.Error())
	if !errors.Is(err, messenger.ErrAuth) || m == nil {
		return err
	}
	methods, modes := strings.Fields(m[1]), strings.Fields(m[2])
	tls := slices.Contains(methods, "tls")
	switch {
	case s.Auth != "tls" && tls:
		flags := "--auth tls"
		if !slices.Contains(modes, "crc") {
			flags += " --secure"
		}
		return fmt.Errorf("the node wants %s, with --cert, --key and --ca: %w", flags, err)
	case s.Auth == "tls" && !tls:
		return fmt.Errorf("the node knows no certificates: leave --auth tls and --secure out, or start the node with --auth tls as well: %w", err)
	}
	return err
}

// fromFiles is what was read from files, and is read again when they have changed: certificates are replaced while the
// node runs. While what is there can not be read, what was read before counts.
type fromFiles[T any] struct {
	log   *slog.Logger
	files []string
	read  func() (T, error)

	mu    sync.Mutex
	have  T
	ok    bool
	stamp []fileStamp
}

type fileStamp struct {
	at   time.Time
	size int64
}

func (f *fromFiles[T]) get() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stamp := make([]fileStamp, len(f.files))
	for i, name := range f.files {
		if st, err := os.Stat(name); err == nil {
			stamp[i] = fileStamp{st.ModTime(), st.Size()}
		}
	}
	if f.ok && equalStamps(stamp, f.stamp) {
		return f.have, nil
	}
	v, err := f.read()
	switch {
	case err == nil:
		if f.ok {
			f.log.Info("read again", "files", f.files)
		}
		f.have, f.ok, f.stamp = v, true, stamp
	case f.ok:
		f.log.Error("can not be read; what was there before counts", "files", f.files, "err", err)
		f.stamp = stamp
		err = nil
	}
	return f.have, err
}

func equalStamps(a, b []fileStamp) bool {
	for i := range a {
		if !a[i].at.Equal(b[i].at) || a[i].size != b[i].size {
			return false
		}
	}
	return true
}
