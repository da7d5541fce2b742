package node

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/acts"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/raftstore"
)

// auditFile is the default path of the audit log.
func auditFile(dataDir string) string { return filepath.Join(dataDir, "audit", "audit.log") }

// startAudit opens the audit log. It stops after the store and the API server, so that no event is
// late.
func (s *server) startAudit(ctx context.Context) (err error) {
	options := s.options.Audit
	if options == nil {
		options = audit.NewOptions()
	}
	s.access.audit, err = audit.New(options, auditFile(s.options.DataDir), s.logger.With("part", "audit"))
	if err != nil {
		return err
	}
	return s.stack.Start(ctx,
		lifecycle.Component{Name: "audit log", Run: s.access.audit.Run, StopTimeout: audit.StopTimeout})
}

// auditLosses are those of this server, for its report.
func (s *server) auditLosses() (out []clusterstatus.AuditLoss) {
	for _, l := range s.access.audit.Losses() {
		out = append(out, clusterstatus.AuditLoss(l))
	}
	return out
}

// auditBackup records a scheduled backup, which nobody requests, as one that this server requests
// of itself.
func (s *server) auditBackup(file string, began time.Time, err error) {
	r := audit.Request{User: s.options.Name, Groups: []string{join.ServersOrganization}, Method: http.MethodPost,
		URI: backups.SnapshotSavePath, Path: backups.SnapshotSavePath,
		Received: began, Status: http.StatusOK, Annotations: map[string]string{"backup.barque.io/file": file}}
	if err != nil {
		r.Status, r.Reason = http.StatusInternalServerError, err.Error()
	}
	s.access.audit.Record(r)
}

// rotationPaths are those of the operators' requests, by the keys.
var rotationPaths = map[acts.Keys]string{acts.CA: adminapi.CAPath, acts.Gossip: adminapi.KeysPath,
	acts.Data: adminapi.EncryptionPath}

// auditRotation records a step of a rotation. The leader makes it, or this server for an operator,
// whose request has an event of its own.
func (s *server) auditRotation(of acts.Keys, w rollover.Written) {
	who, groups := acts.Leader, []string(nil)
	if w.Cause == rollover.Ordered {
		who, groups = s.options.Name, []string{join.ServersOrganization}
	}
	s.auditAct(who, groups, rotationPaths[of], acts.Rotation(of, w))
}

// auditMember records a change of the members that this server has made as the leader.
func (s *server) auditMember(c raftstore.MemberChange) {
	s.auditAct(acts.Leader, nil, adminapi.MembersPath+"/"+c.Name, acts.Member(c.Change, c.Name, c.ID, c.Why))
}

// auditAct records an act without a request.
func (s *server) auditAct(who string, groups []string, path string, annotations map[string]string) {
	s.access.audit.RecordAct(
		audit.Request{User: who, Groups: groups, Method: http.MethodPost, URI: path, Path: path, Received: time.Now(),
			Status: http.StatusOK, Annotations: annotations})
}

// annotationPrefix is that of the claims of a joining machine in its event.
const annotationPrefix = "join.barque.io/"

// auditJoining records a request that does not go through the API server's chain.
func (s *server) auditJoining(a join.Audited) {
	source, _, err := net.SplitHostPort(a.Request.RemoteAddr)
	if err != nil {
		source = a.Request.RemoteAddr
	}
	r := audit.Request{User: a.User, Groups: a.Groups, Method: a.Request.Method, URI: a.Request.URL.RequestURI(),
		Path:   a.Request.URL.Path,
		Source: source, UserAgent: a.Request.UserAgent(), Received: a.Received, Status: a.Status, Reason: a.Reason,
		Annotations: map[string]string{}}
	for name, value := range a.Claims {
		r.Annotations[annotationPrefix+name] = value
	}
	s.access.audit.Record(r)
}
