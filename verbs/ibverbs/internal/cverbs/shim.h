// What cgo can not call by itself: macros, inline functions that take linked
// lists, and batches.
#ifndef ARGONAUT_CVERBS_SHIM_H
#define ARGONAUT_CVERBS_SHIM_H

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

enum { AV_MAX_BATCH = 64 };

// The Go types SendWR and RecvWR have the same layout.
struct av_send_wr {
	uint64_t wr_id, remote_addr, compare_add, swap;
	uint64_t mw, mr, bind_addr, bind_length; // mw and mr: C pointers
	uint32_t opcode, flags, num_sge, rkey;
	uint32_t imm, invalidate_rkey, bind_rkey, bind_access;
};

struct av_recv_wr {
	uint64_t wr_id;
	uint32_t num_sge, pad;
};

// av_posted packs what a post returned: how many requests are in the queue (up
// to bad_wr, which alone says so) and the error number without its sign.
static inline int64_t av_posted(int64_t n, int rc)
{
	return n << 32 | (rc < 0 ? -rc : rc);
}

// av_post_send posts n <= AV_MAX_BATCH requests whose SGEs follow each other in
// sge.
static inline int64_t av_post_send(struct ibv_qp *qp, const struct av_send_wr *in, struct ibv_sge *sge, int n)
{
	struct ibv_send_wr wr[AV_MAX_BATCH], *bad = NULL;
	int i, rc;

	for (i = 0; i < n; i++, in++) {
		struct ibv_send_wr *w = &wr[i];

		w->wr_id = in->wr_id;
		w->next = i + 1 < n ? w + 1 : NULL;
		w->sg_list = sge;
		w->num_sge = in->num_sge;
		w->opcode = in->opcode;
		w->send_flags = in->flags;
		w->imm_data = 0; // rxe refuses a bind with anything else
		sge += in->num_sge;
		switch (w->opcode) {
		case IBV_WR_RDMA_WRITE_WITH_IMM:
			w->imm_data = htobe32(in->imm);
			// fall through
		case IBV_WR_RDMA_WRITE:
		case IBV_WR_RDMA_READ:
			w->wr.rdma.remote_addr = in->remote_addr;
			w->wr.rdma.rkey = in->rkey;
			break;
		case IBV_WR_SEND_WITH_IMM:
			w->imm_data = htobe32(in->imm);
			break;
		case IBV_WR_SEND_WITH_INV:
		case IBV_WR_LOCAL_INV:
			w->invalidate_rkey = in->invalidate_rkey;
			break;
		case IBV_WR_ATOMIC_CMP_AND_SWP:
		case IBV_WR_ATOMIC_FETCH_AND_ADD:
			w->wr.atomic.remote_addr = in->remote_addr;
			w->wr.atomic.rkey = in->rkey;
			w->wr.atomic.compare_add = in->compare_add;
			w->wr.atomic.swap = in->swap;
			break;
		case IBV_WR_BIND_MW:
			w->bind_mw.mw = (struct ibv_mw *)(uintptr_t)in->mw;
			w->bind_mw.rkey = in->bind_rkey;
			w->bind_mw.bind_info.mr = (struct ibv_mr *)(uintptr_t)in->mr;
			w->bind_mw.bind_info.addr = in->bind_addr;
			w->bind_mw.bind_info.length = in->bind_length;
			w->bind_mw.bind_info.mw_access_flags = in->bind_access;
			break;
		default:
			break;
		}
	}
	rc = ibv_post_send(qp, wr, &bad);
	return av_posted(bad ? bad - wr : n, rc);
}

static inline struct ibv_recv_wr *av_recv_chain(struct ibv_recv_wr *wr, const struct av_recv_wr *in,
						struct ibv_sge *sge, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		wr[i].wr_id = in[i].wr_id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = sge;
		wr[i].num_sge = in[i].num_sge;
		sge += in[i].num_sge;
	}
	return wr;
}

// av_poll_arm polls, and if there is nothing, arms the CQ and polls once more. It
// returns what ibv_poll_cq does, with AV_ARMED added when the CQ is armed, or
// AV_ARM_FAILED plus the error number.
enum { AV_ARMED = 1 << 16, AV_ARM_FAILED = 1 << 17 };

static inline int av_poll_arm(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = ibv_poll_cq(cq, n, wc), rc;

	if (got != 0)
		return got;
	rc = ibv_req_notify_cq(cq, 0);
	if (rc != 0)
		return AV_ARM_FAILED + (rc == -1 ? errno : rc < 0 ? -rc : rc);
	got = ibv_poll_cq(cq, n, wc);
	return got < 0 ? got : got + AV_ARMED;
}

static inline int64_t av_post_recv(struct ibv_qp *qp, const struct av_recv_wr *in, struct ibv_sge *sge, int n)
{
	struct ibv_recv_wr wr[AV_MAX_BATCH], *bad = NULL;
	int rc = ibv_post_recv(qp, av_recv_chain(wr, in, sge, n), &bad);

	return av_posted(bad ? bad - wr : n, rc);
}

static inline int64_t av_post_srq_recv(struct ibv_srq *srq, const struct av_recv_wr *in, struct ibv_sge *sge, int n)
{
	struct ibv_recv_wr wr[AV_MAX_BATCH], *bad = NULL;
	int rc = ibv_post_srq_recv(srq, av_recv_chain(wr, in, sge, n), &bad);

	return av_posted(bad ? bad - wr : n, rc);
}

static inline int av_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	return ibv_query_port(ctx, port, attr);
}

// The address comes as a number: it may be of the Go heap, pinned by the caller.
static inline struct ibv_mr *av_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t length, int access)
{
	return ibv_reg_mr(pd, (void *)addr, length, access);
}

// Unions, which Go sees as bytes.
static inline struct ibv_cq *av_event_cq(struct ibv_async_event *e) { return e->element.cq; }
static inline struct ibv_qp *av_event_qp(struct ibv_async_event *e) { return e->element.qp; }
static inline struct ibv_srq *av_event_srq(struct ibv_async_event *e) { return e->element.srq; }
static inline int av_event_port(struct ibv_async_event *e) { return e->element.port_num; }
static inline struct rdma_conn_param *av_event_conn(struct rdma_cm_event *e) { return &e->param.conn; }

#endif
