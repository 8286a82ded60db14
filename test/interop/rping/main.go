// Command rping is a peer for the rping of rdmacm-utils, in both roles, on any provider of this project:
//
//	rping -s -a ADDR [-p PORT] [-C COUNT] [-S SIZE] [-V] [-v] [-device NAME]
//	rping -c -a ADDR ...
//
// The client says where a buffer with its text is; the server READs it and says go; the client says where another buffer
// is; the server WRITEs the text to it and says go. That is one of COUNT rounds. NAME is an RDMA device of the kernel, or
// iwarp, the adapter in software.
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
)

type config struct {
	server   bool
	addr     string // host:port
	device   string
	local    string // IP address of the device's interface, may be empty
	count    int    // rounds; 0: until the other side ends
	size     int    // bytes of a buffer
	validate bool
	verbose  io.Writer // nil: silent
	listens  func(addr string)
}

// Limits of rping's -S.
const (
	minSize = 26
	maxSize = 64<<10 - 1
)

func main() {
	var c config
	var client, verbose bool
	var host, port, ready string
	var timeout time.Duration
	flag.BoolVar(&c.server, "s", false, "server")
	flag.BoolVar(&client, "c", false, "client")
	flag.StringVar(&host, "a", "", "address to listen at or to connect to")
	flag.StringVar(&port, "p", "7174", "port")
	flag.IntVar(&c.count, "C", 0, "rounds, 0: for ever")
	flag.IntVar(&c.size, "S", 64, "bytes of a buffer")
	flag.BoolVar(&c.validate, "V", false, "check what comes back")
	flag.BoolVar(&verbose, "v", false, "print what is pinged")
	flag.StringVar(&c.device, "device", "iwarp", "an RDMA device, or iwarp")
	flag.StringVar(&c.local, "local", "", "IP address of the RDMA device's interface")
	flag.StringVar(&ready, "ready", "", "file to make when the server listens")
	flag.DurationVar(&timeout, "timeout", time.Minute, "of everything")
	flag.Parse()
	if c.server == client || host == "" || flag.NArg() > 0 || c.size < minSize || c.size > maxSize || c.count < 0 {
		flag.Usage()
		os.Exit(2)
	}
	if verbose {
		c.verbose = os.Stdout
	}
	c.addr = net.JoinHostPort(host, port)
	if ready != "" {
		c.listens = func(addr string) {
			if err := os.WriteFile(ready, []byte(addr), 0o600); err != nil {
				fmt.Fprintln(os.Stderr, "rping:", err)
			}
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	err := run(ctx, c)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rping:", err)
		os.Exit(1)
	}
}

// run is one connection, in the role of c.
func run(ctx context.Context, c config) (err error) {
	dev, err := bare.Open(c.device, c.local)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	p, err := newPinger(dev, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if c.server {
		return p.serve(ctx)
	}
	return p.ping(ctx)
}
