package cri

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/exits"
)

// containerd's reasons for the ends of containers, and its exit code for an end that it missed.
const (
	unknownCode     = 255
	unknownReason   = "Unknown"
	oomReason       = "OOMKilled"
	completedReason = "Completed"
	errorReason     = "Error"
)

// CorrectExit puts the record of a container's end into its status where the runtime has lost it,
// and reports whether that changed anything.
func CorrectExit(s *runtimeapi.ContainerStatus, r exits.Record) bool {
	if s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		return false
	}
	if s.ExitCode == unknownCode && s.Reason == unknownReason {
		s.ExitCode, s.FinishedAt, s.Reason = int32(r.ExitCode), r.FinishedAt.UnixNano(), errorReason
		if r.ExitCode == 0 {
			s.Reason = completedReason
		}
		if r.OOMKilled {
			s.Reason = oomReason
		}
		return true
	}
	if r.OOMKilled && s.Reason == errorReason && s.ExitCode == int32(r.ExitCode) {
		s.Reason = oomReason // no containerd has received it from the shim
		return true
	}
	return false
}
