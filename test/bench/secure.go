package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// secureRows compares modes of the messenger, on each carrier, with a raw TCP
// stream that makes as many passes over the data.
func secureRows() []row {
	var rs []row
	for _, scheme := range []string{messenger.SchemeIWARP, messenger.SchemeTCP} {
		rs = append(rs, row{fmt.Sprintf("messenger: stream of 1 MiB, crc mode, %s", scheme), "GB/s", 0.91, noAllocs,
			func(d time.Duration) (result, error) { return modeStream(scheme, messenger.ModeCRC, mib, d) },
			func(d time.Duration) (float64, error) { return tcpStream(mib, true, d) }})
		for _, size := range []int{mib, 64 * kib} {
			rs = append(rs, row{fmt.Sprintf("messenger: stream of %s, secure mode, %s", sizeName(size), scheme), "GB/s", 0.90, noAllocsSecure,
				func(d time.Duration) (result, error) { return modeStream(scheme, messenger.ModeSecure, size, d) },
				func(d time.Duration) (float64, error) { return tcpSealed(size, d) }})
		}
	}
	return rs
}

// tcpSealed is tcpStream with AES-128-GCM: each end makes one pass.
func tcpSealed(size int, d time.Duration) (float64, error) {
	client, server, err := tcpPair()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	defer server.Close()
	var key [16]byte
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return 0, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return 0, err
	}
	var g errgroup.Group
	var rate float64
	g.Go(func() error {
		bufs := buffers(size + aead.Overhead())
		var nonce [12]byte
		var bytes int64
		var begin time.Time
		for i := 0; ; i++ {
			b := bufs[i%tcpDepth]
			if _, err := io.ReadFull(server, b); err == io.EOF {
				rate = float64(bytes) / time.Since(begin).Seconds()
				return nil
			} else if err != nil {
				return err
			}
			if i == 0 {
				begin = time.Now()
			}
			binary.LittleEndian.PutUint64(nonce[:], uint64(i))
			if _, err := aead.Open(b[:0], nonce[:], b, nil); err != nil {
				return err
			}
			bytes += int64(size)
		}
	})
	bufs, sealed := buffers(size), buffers(size+aead.Overhead())
	var nonce [12]byte
	for i, end := 0, time.Now().Add(d); time.Now().Before(end); i++ {
		binary.LittleEndian.PutUint64(nonce[:], uint64(i))
		out := aead.Seal(sealed[i%tcpDepth][:0], nonce[:], bufs[i%tcpDepth], nil)
		if _, err := client.Write(out); err != nil {
			return 0, err
		}
	}
	if err := client.Close(); err != nil {
		return 0, err
	}
	err = g.Wait()
	return rate, err
}

// modeEntity is newEntity with certificates, and a mode.
func modeEntity(name string, mode messenger.Mode, auth messenger.Auth, d messenger.Dispatcher) (*entity, error) {
	entityName, err := messenger.ParseEntityName(name)
	if err != nil {
		return nil, err
	}
	h, err := newHost(iwarp.CRCAuto)
	if err != nil {
		return nil, err
	}
	m, err := messenger.New(messenger.Config{
		Name:  entityName,
		Arena: h.arena,
		Transports: []messenger.Transport{{
			Scheme: messenger.SchemeIWARP,
			Open: func(cfg conn.Config) (*conn.Endpoint, error) {
				return conn.NewEndpoint(h.dev, h.arena, cfg)
			},
		}},
		Auth:  []messenger.Auth{auth},
		Modes: []messenger.Mode{mode},
	})
	if err != nil {
		return nil, errors.Join(err, h.close(nil))
	}
	m.AddDispatcher(d)
	return &entity{h, m}, nil
}

// modeStream is messengerStream with certificates, over a carrier and in a mode.
func modeStream(scheme string, mode messenger.Mode, size int, d time.Duration) (r result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+30*time.Second)
	defer cancel()
	auth, err := selfSigned()
	if err != nil {
		return r, err
	}
	var s sink
	server, err := modeEntity("osd.0", mode, auth, &s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	addrs, err := messenger.ParseAddrs(scheme + "://127.0.0.1:0")
	if err != nil {
		return r, err
	}
	if err := server.m.Bind(ctx, addrs); err != nil {
		return r, err
	}
	client, err := modeEntity("client.1", mode, auth, messenger.BaseDispatcher{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	c, err := join(ctx, client, server.addr())
	if err != nil {
		return r, err
	}
	if c.Mode() != mode {
		return r, fmt.Errorf("the connection is in mode %v, not %v", c.Mode(), mode)
	}
	return stream(ctx, client, c, &s, size, d)
}

// selfSigned is a certificate for both ends, which is its own authority.
func selfSigned() (*messenger.AuthTLS, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"osd.*", "client.*"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &messenger.AuthTLS{
		Certificate: func() (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
		},
		Roots: func() (*x509.CertPool, error) { return roots, nil },
	}, nil
}
