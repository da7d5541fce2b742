// Package apiobjects gives the volumes of a node's pods the objects of the API that they refer to:
// ConfigMaps and Secrets, service-account tokens, trust bundles, and certificates of the pod.
//
// Each is fetched or watched while a pod of this node refers to it, and forgotten with the last
// such pod. A change wakes its pods. Nothing is on a disk: package volumes writes the files.
package apiobjects
