package main

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// tcpDepth is how many buffers each end of the raw stream goes round, so that
// neither end works out of one buffer that never leaves the cache.
const tcpDepth = 16

// tcpPair is a connection over loopback, with Go's defaults.
func tcpPair() (client, server net.Conn, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	var g errgroup.Group
	g.Go(func() (err error) { server, err = ln.Accept(); return err })
	client, err = net.Dial("tcp", ln.Addr().String())
	return client, server, errors.Join(err, g.Wait())
}

// tcpStream sends messages of size bytes one way for d and returns bytes per
// second as the receiver counts them. With crc each end makes one pass over
// each message and the receiver compares.
func tcpStream(size int, crc bool, d time.Duration) (float64, error) {
	client, server, err := tcpPair()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	defer server.Close()
	var g errgroup.Group
	var rate float64
	g.Go(func() error {
		bufs := buffers(size)
		var head [8]byte
		var bytes int64
		var begin time.Time
		for i := 0; ; i++ {
			if _, err := io.ReadFull(server, head[:]); err == io.EOF {
				rate = float64(bytes) / time.Since(begin).Seconds()
				return nil
			} else if err != nil {
				return err
			}
			if i == 0 {
				begin = time.Now()
			}
			b := bufs[i%tcpDepth][:binary.LittleEndian.Uint32(head[:])]
			if _, err := io.ReadFull(server, b); err != nil {
				return err
			}
			if crc && crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
				return errors.New("raw stream: bad checksum")
			}
			bytes += int64(len(b))
		}
	})
	bufs := buffers(size)
	var head [8]byte
	iov := make(net.Buffers, 2)
	for i, end := 0, time.Now().Add(d); time.Now().Before(end); i++ {
		b := bufs[i%tcpDepth]
		binary.LittleEndian.PutUint32(head[:], uint32(len(b)))
		if crc {
			binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(b, castagnoli))
		}
		iov = iov[:2]
		iov[0], iov[1] = head[:], b
		v := iov
		if _, err := v.WriteTo(client); err != nil {
			return 0, err
		}
	}
	if err := client.Close(); err != nil {
		return 0, err
	}
	err = g.Wait()
	return rate, err
}

func buffers(size int) [][]byte {
	bufs := make([][]byte, tcpDepth)
	for i := range bufs {
		bufs[i] = make([]byte, size)
		for j := range bufs[i] {
			bufs[i][j] = byte(i + j)
		}
	}
	return bufs
}

const pingSize = 64 // bytes

// tcpEcho sends what one connection brings back, pingSize bytes at a time.
type tcpEcho struct {
	ln net.Listener
	g  errgroup.Group
}

func newTCPEcho() (*tcpEcho, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &tcpEcho{ln: ln}
	e.g.Go(func() error {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		defer c.Close()
		b := make([]byte, pingSize)
		for {
			if _, err := io.ReadFull(c, b); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
	})
	return e, nil
}

func (e *tcpEcho) addr() string { return e.ln.Addr().String() }

// close waits until the other end has closed the connection; if there was none, it does not wait for one.
func (e *tcpEcho) close() error {
	err := e.ln.Close()
	return errors.Join(err, e.g.Wait())
}

// tcpCall is tcpPing whose answers are read by one goroutine and waited for by
// another, as calls over a shared connection are, with a deadline.
func tcpCall(d time.Duration) (float64, error) { return tcpCallUntil(d, d+30*time.Second) }

func tcpCallUntil(d, limit time.Duration) (v float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	server, err := startChild("tcp")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client, err := net.Dial("tcp", server.at)
	if err != nil {
		return 0, err
	}
	answers := make(chan error, 1)
	go func() { // ends with the connection
		defer close(answers)
		b := make([]byte, pingSize)
		for {
			_, err := io.ReadFull(client, b)
			answers <- err
			if err != nil {
				return
			}
		}
	}()
	defer func() { // before the server, which ends with the connection
		err = errors.Join(err, client.Close())
		for range answers { //nolint:revive // until the reader has ended
		}
	}()
	b := make([]byte, pingSize)
	begin, n := time.Now(), 0
	for time.Since(begin) < d {
		if _, err := client.Write(b); err != nil {
			return 0, err
		}
		select {
		case err = <-answers:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return 0, err
		}
		n++
	}
	return time.Since(begin).Seconds() / float64(n), nil
}

// tcpPing bounces pingSize bytes for d and returns seconds per round trip.
func tcpPing(d time.Duration) (v float64, err error) {
	server, err := startChild("tcp")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client, err := net.Dial("tcp", server.at)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Close()) }() // before the server, which ends with the connection
	b := make([]byte, pingSize)
	begin, n := time.Now(), 0
	for time.Since(begin) < d {
		if _, err := client.Write(b); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(client, b); err != nil {
			return 0, err
		}
		n++
	}
	return time.Since(begin).Seconds() / float64(n), nil
}
