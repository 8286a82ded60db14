package iwarp

import (
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Open opens a software RNIC.
func Open(cfg Config) (*verbs.Device, error) {
	d, err := OpenDriver(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Core.Logger == nil {
		cfg.Core.Logger = cfg.Logger
	}
	dev, err := verbs.NewDevice(d, cfg.Core)
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return dev, nil
}
