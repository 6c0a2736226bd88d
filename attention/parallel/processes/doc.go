// Package processes makes groups whose ranks are processes, one per device, on one host or
// several. [FromEnvironment] makes a parallel.Group from the variables that torchrun, srun and
// mpirun set. [FromComm] makes one from the caller's ncclComm_t.
//
// Two transports move tensors. [TransportNCCL] needs an NVIDIA GPU for every rank, and NCCL,
// which is loaded at run time (package vkattn/internal/nccl). It moves device-local buffers that
// were made with vk.BufferOptions.Exportable, without a copy. [TransportTCP] moves host memory
// and host-visible buffers over TCP. It is for ranks on the CPU tier and for tests.
//
// # Failures
//
// Every transport has a side channel (package control). A rank that dies, hangs or reports an
// error of NCCL ends the calls of all ranks with the same parallel.RankError, which names it.
// NCCL's communicator is then aborted on every rank. Calls return when the GPU no longer uses
// their tensors.
//
// # Leaving
//
// Group.Close leaves without waiting for the others. Call Group.Barrier before it, so that no
// rank still receives what this one has sent.
package processes
