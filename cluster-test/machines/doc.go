// Package machines makes machines on this one. Each has its own network interface, host name,
// mounts, processes and disk; a switch that nothing else is plugged into connects them, so that
// they can have the very addresses, paths and names that the documentation uses, and commands run
// in them word for word:
//
//	[switch, a network namespace with a bridge]
//	   │          │          │
//	[s1 10.0.0.1] [s2 …]   [s3 …]     network, mount, process, host name and IPC namespaces, one process 1 each
//
// In a machine /var/lib/barque is its disk, which may be an image of a limited size, /etc is its
// own, /home/operator is the directory in which commands run, and `barque` on the PATH is the
// binary under test.
//
// A lab may have more switches, each a layer-2 network (Segment). The switches' namespace routes
// between them.
//
// A machine is switched off by killing its process 1: the kernel kills all others with it, as a
// loss of power does (unsynced writes survive, as this machine's memory holds them). The same
// happens when the process that made the machines ends, however it ends: process 1 reads from a
// pipe that breaks then. Nothing of a machine can be seen in this machine's own namespaces but its
// processes, its files below the lab's directory, and the cgroups of pods.
//
// The process 1 of a machine is the program itself: it must call InitIfAsked first of all. Root is
// needed.
package machines
