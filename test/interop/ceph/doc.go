// Package ceph holds the messenger against real Ceph programs. Its tests need a
// monitor and the ceph program: run starts them.
package ceph
