// Package podlogs owns the directories of the logs of a node's pods, and the links by which
// collectors find a container's log. The runtime writes the logs; package logs rotates them.
//
// The paths are upstream's:
//
//	LOGDIR/<namespace>_<name>_<uid>/<container>/<attempt>.log     LOGDIR is /var/log/pods
//	LINKDIR/<name>_<namespace>_<container>-<id>.log               a link to it; LINKDIR is /var/log/containers
//
// Several kubelets of one machine may share LOGDIR. Each marks the directories of its own pods, and
// removes no others.
package podlogs
