// Command storage-node is an object store on one machine, and its client: a program that uses every layer of the library.
//
//	storage-node serve --listen 127.0.0.1:7471 --data /var/lib/storage-node
//	storage-node put --server 127.0.0.1:7471 backup/monday monday.tar
//	storage-node get --server 127.0.0.1:7471 --range 0-1023 backup/monday -
//	storage-node ls --server 127.0.0.1:7471
//	storage-node demo
//
// README.md has the rest.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/alecthomas/kong"
)

type cli struct {
	Serve  serveCmd  `cmd:"" help:"Run a node."`
	Put    putCmd    `cmd:"" help:"Store a file as an object."`
	Get    getCmd    `cmd:"" help:"Fetch an object into a file."`
	Ls     lsCmd     `cmd:"" help:"List objects."`
	Stat   statCmd   `cmd:"" help:"Describe an object, or the node."`
	Rm     rmCmd     `cmd:"" help:"Remove an object."`
	Demo   demoCmd   `cmd:"" help:"Start a node in a temporary directory, store and fetch objects, and shut it down."`
	Doctor doctorCmd `cmd:"" help:"Say which RDMA devices there are, which would be used, and what stands in the way."`

	Verbose bool `short:"v" help:"Log more."`
}

// program is what a command may use of the world around it.
type program struct {
	ctx    context.Context // ends with the first SIGINT or SIGTERM
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	log    *slog.Logger
	level  *slog.LevelVar // of log
}

// say prints for whoever runs the program. Where that can not be printed there is nobody to tell.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// exit statuses.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// errExit carries the status that kong wants to exit with, after help for instance.
type errExit int

func (e errExit) Error() string { return fmt.Sprintf("exit %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals...)
	context.AfterFunc(ctx, stop) // the second signal ends the program as if nobody waited for it
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (status int) {
	var c cli
	parser, err := kong.New(&c,
		kong.Name("storage-node"),
		kong.Description("An object store over RDMA, or over a software adapter that speaks iWARP."),
		kong.UsageOnError(),
		kong.Vars{"device": "The adapter: iwarp is the one in software (the default of all but doctor), tcp is none, auto is the RDMA device that serves the address if one " +
			"can be used and else iwarp; any other is the name of an RDMA device (doctor lists them)."},
		kong.Writers(stdout, stderr),
		kong.Exit(func(status int) { panic(errExit(status)) }),
	)
	if err != nil {
		panic(err) // the struct tags above are wrong
	}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(errExit)
			if !ok {
				panic(r)
			}
			status = int(e)
		}
	}()
	k, err := parser.Parse(args)
	if err != nil {
		say(stderr, "storage-node: error: %v\n", err)
		say(stderr, "run storage-node --help for the usage\n")
		return exitUsage
	}
	level := new(slog.LevelVar)
	switch {
	case c.Verbose:
		level.Set(slog.LevelDebug)
	case k.Command() == "serve":
		level.Set(slog.LevelInfo)
	default:
		level.Set(slog.LevelWarn)
	}
	p := &program{
		ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr, level: level,
		log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})),
	}
	if err := k.Run(p); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = errors.New("interrupted")
		}
		say(stderr, "storage-node: error: %v\n", err)
		if errors.As(err, new(*usageError)) {
			say(stderr, "run storage-node --help for the usage\n")
			return exitUsage
		}
		return exitError
	}
	return exitOK
}

// timeouts of shutting down.
const (
	serveShutdown  = 6 * time.Second // after the grace: an operator is promised 7
	clientShutdown = 3 * time.Second
)
