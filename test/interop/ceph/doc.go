// Package ceph holds the messenger against real Ceph programs. Its tests need a
// monitor, an OSD and the ceph program: run prepares them.
package ceph
