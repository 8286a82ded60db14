// Command rcpingpong is a peer for the ibv_rc_pingpong of ibverbs-utils, in both roles, on a device of InfiniBand or RoCE:
// the two tell each other over TCP what their queue pairs are, connect them by attributes, and then each sends a message
// after it has received one, beginning with the client.
//
//	rcpingpong -device NAME -addr IP [-p PORT] [-n MESSAGES] [-s BYTES] [-ready FILE] [SERVER]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/argonaut-rdma/argonaut/test/interop/internal/bare"
	"github.com/argonaut-rdma/argonaut/verbs"
)

type config struct {
	device, addr string
	port         string
	server       string // empty: be the server
	count, size  int
	listens      func(addr string)
}

func main() {
	var c config
	var ready string
	var timeout time.Duration
	flag.StringVar(&c.device, "device", "", "RDMA device")
	flag.StringVar(&c.addr, "addr", "", "IP address of its interface")
	flag.StringVar(&c.port, "p", "18515", "TCP port")
	flag.IntVar(&c.count, "n", 1000, "messages each way")
	flag.IntVar(&c.size, "s", 4096, "bytes of a message")
	flag.StringVar(&ready, "ready", "", "file to make when the server listens")
	flag.DurationVar(&timeout, "timeout", time.Minute, "of everything")
	flag.Parse()
	if c.server = flag.Arg(0); c.device == "" || flag.NArg() > 1 || c.count < 1 || c.size < 1 {
		flag.Usage()
		os.Exit(2)
	}
	if ready != "" {
		c.listens = func(addr string) {
			if err := os.WriteFile(ready, []byte(addr), 0o600); err != nil {
				fmt.Fprintln(os.Stderr, "rcpingpong:", err)
			}
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	err := run(ctx, c)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rcpingpong:", err)
		os.Exit(1)
	}
	fmt.Printf("%d messages of %d bytes each way\n", c.count, c.size)
}

func run(ctx context.Context, c config) (err error) {
	dev, err := bare.Open(c.device, c.addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	p, err := newPlayer(dev, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	sock, err := c.meet(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sock.Close()) }()
	stop := context.AfterFunc(ctx, func() { _ = sock.SetDeadline(time.Now()) })
	defer stop()
	if err := p.connect(sock, c.server != ""); err != nil {
		return err
	}
	return p.play(ctx, c.server != "")
}

// meet makes the connection that the ends introduce themselves over.
func (c config) meet(ctx context.Context) (net.Conn, error) {
	if c.server != "" {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", net.JoinHostPort(c.server, c.port))
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(c.addr, c.port))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	if c.listens != nil {
		c.listens(l.Addr().String())
	}
	sock, err := l.Accept()
	return sock, errors.Join(err, l.Close())
}

const done = "done\x00" // of the client, once it knows the server's endpoint

// connect exchanges endpoints and moves the queue pair to RTS. The server is ready before it answers, the client when it
// has the answer.
func (p *player) connect(sock net.Conn, client bool) error {
	own, err := p.QP.Endpoint()
	if err != nil {
		return err
	}
	if client {
		if _, err := sock.Write(appendEndpoint(nil, own)); err != nil {
			return err
		}
	}
	b := make([]byte, endpointLen)
	if _, err := io.ReadFull(sock, b); err != nil {
		return err
	}
	peer, err := parseEndpoint(b)
	if err != nil {
		return err
	}
	if client {
		if _, err := io.WriteString(sock, done); err != nil {
			return err
		}
	}
	for _, a := range []verbs.ModifyAttr{
		// What ibv_rc_pingpong takes unless told otherwise.
		{State: verbs.QPStateRTR, Remote: peer, MTU: 1024, IRD: 1, HopLimit: 1},
		{State: verbs.QPStateRTS, ORD: 1},
	} {
		if err := p.QP.Modify(a); err != nil {
			return err
		}
	}
	if client {
		return nil
	}
	if _, err := sock.Write(appendEndpoint(nil, own)); err != nil {
		return err
	}
	_, err = io.ReadFull(sock, b[:len(done)])
	return err
}
