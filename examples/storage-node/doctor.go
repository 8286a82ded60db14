package main

import (
	"errors"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/doctor"
)

type doctorCmd struct {
	Device string   `default:"auto" help:"${device}"`
	Addr   string   `placeholder:"ADDR" help:"The address that a node would listen on; all of this machine are looked at if it is left out."`
	Arena  byteSize `default:"256MiB" help:"Registered memory that is wanted."`
	Pin    bool     `help:"Lock the arena into memory, with the adapter in software too."`
}

var errNotUsable = errors.New("not usable: see the problems above")

// Run prints the report; it fails when what was asked for can not be used.
func (c *doctorCmd) Run(p *program) error {
	r := doctor.Examine(doctor.Config{Device: c.Device, Addr: c.Addr, Arena: int64(c.Arena), Pin: c.Pin})
	if err := r.Print(p.stdout); err != nil {
		return err
	}
	if !r.Usable() {
		return errNotUsable
	}
	return nil
}
