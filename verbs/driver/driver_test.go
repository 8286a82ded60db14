package driver

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		OpSend.String():                            "SEND",
		OpRecvWriteImm.String():                    "RECV_RDMA_WITH_IMM",
		Opcode(200).String():                       "200",
		StatusWRFlushErr.String():                  "WR_FLUSH_ERR",
		StatusGeneralErr.String():                  "GENERAL_ERR",
		WCStatus(99).String():                      "99",
		QPStateErr.String():                        "ERR",
		EventCQErr.String():                        "CQ_ERR",
		EventDisconnected.String():                 "DISCONNECTED",
		TransportRoCE.String():                     "RoCE",
		Access(0).String():                         "0",
		(AccessLocalWrite | AccessMWBind).String(): "LOCAL_WRITE|MW_BIND",
		(AccessRemoteRead | 1<<31).String():        "REMOTE_READ|0x80000000",
		(SendSignaled | SendInline).String():       "SIGNALED|INLINE",
	} {
		require.Equal(t, want, got)
	}
}

// The numbers are those of <infiniband/verbs.h>: providers pass them through.
func TestValues(t *testing.T) {
	require.EqualValues(t, 5, StatusWRFlushErr)
	require.EqualValues(t, 10, StatusRemAccessErr)
	require.EqualValues(t, 12, StatusRetryExcErr)
	require.EqualValues(t, 21, StatusGeneralErr)
	require.EqualValues(t, 6, QPStateErr)
	require.EqualValues(t, 1, AccessLocalWrite)
	require.EqualValues(t, 16, AccessMWBind)
	require.EqualValues(t, 64, AccessOnDemand)
	require.EqualValues(t, 2, SendSignaled)
	require.EqualValues(t, 8, SendInline)
}

func TestRejectErrorIsRefused(t *testing.T) {
	require.True(t, errors.Is(&RejectError{}, ErrRefused))
}
