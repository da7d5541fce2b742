package protection

import (
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// listing is an API with the pods of another API.
type listing struct {
	kubernetes.Interface
	pods kubernetes.Interface
}

func (l listing) CoreV1() corev1client.CoreV1Interface {
	return coreListing{l.Interface.CoreV1(), l.pods}
}

type coreListing struct {
	corev1client.CoreV1Interface
	pods kubernetes.Interface
}

func (l coreListing) Pods(namespace string) corev1client.PodInterface {
	return l.pods.CoreV1().Pods(namespace)
}
