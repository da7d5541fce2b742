// Package audit records requests as events of audit.k8s.io/v1: the user, the request and its
// outcome. It has upstream's options, policy and event format, and sends events to a rotated file
// and to a webhook.
//
//	filter chain ─policy─▶ Log ─▶ queue ─▶ file
//	handlers before it ──▶     ─▶ queue ─▶ webhook
//
// # Invariants
//
//   - In batch mode, the default of both sinks, no request waits for a disk or a webhook. A queue
//     is bounded in events and in bytes. An event that finds it full is lost.
//   - A lost event is counted, in apiserver_audit_error_total and in [Log.Losses]. A full disk or a
//     dead webhook ends no process.
//   - Run flushes all queues at its end, within [flushTimeout].
//
// Upstream's buffered backend is not used: it bounds events but not bytes, sends to a hanging
// webhook in an unbounded number of goroutines, and has no bound for its flush.
//
// Without a policy file the policy is [DefaultPolicy].
package audit
