// Package selinux chooses the SELinux label with which a volume is mounted for a pod (KEP-1710).
package selinux
