// Package auditlog searches the audit log of one server for operators: the file and its rotated
// predecessors, with their events of audit.k8s.io/v1 in lines. It writes nothing; package
// apiserver/audit does.
//
// A search is bounded in events, bytes and time. It begins with the newest file, so the
// events left out are older than all that come from other files.
package auditlog
