package cri

// Labels that tie sandboxes and containers to pods. They are the ones that every Kubernetes node
// uses, so that crictl and log collectors understand them.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
)

// Annotations of containers, read back after a restart of the kubelet.
const (
	// AnnotationImage is the image as the pod named it when the container was made.
	AnnotationImage = "barque.io/image"
	// AnnotationTerminationFile is the file on the host behind the container's termination message.
	AnnotationTerminationFile = "barque.io/termination-file"
	// AnnotationTerminationPolicy says whether the log may stand in for that file.
	AnnotationTerminationPolicy = "barque.io/termination-policy"
	// AnnotationGrace is the pod's termination grace in seconds, for a container whose pod is
	// unknown.
	AnnotationGrace = "barque.io/grace-seconds"
	// AnnotationMemoryRequest is the container's request of memory in bytes when it was made.
	AnnotationMemoryRequest = "barque.io/memory-request"
	// AnnotationRound counts how often a rule has restarted all containers of the pod before the
	// container was made. It is missing while none has.
	AnnotationRound = "barque.io/round"
)
