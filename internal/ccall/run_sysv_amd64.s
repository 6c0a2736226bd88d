// Calls by the convention of System V. runtime.cgocall calls run on the system stack with the first frame in DI; frames
// run until the next one is nil or has no function.

//go:build linux || darwin

#include "textflag.h"
#include "go_asm.h"

GLOBL ·run(SB), NOPTR|RODATA, $8
DATA ·run(SB)/8, $run<>(SB)
TEXT run<>(SB), NOSPLIT, $208 // arguments 7 to 32
	MOVQ DI, R12

next:
	CMPQ Frame_Fn(R12), $0
	JEQ  done
	MOVQ Frame_Args(R12), CX
	SUBQ $6, CX
	JLE  registers

stack:
	MOVQ (Frame__size+5*8)(R12)(CX*8), AX
	MOVQ AX, -8(SP)(CX*8)
	DECQ CX
	JNZ  stack

registers:
	MOVQ Frame_Args(R12), CX
	TESTQ CX, CX
	JEQ  call
	MOVQ (Frame__size+0*8)(R12), DI
	CMPQ CX, $1
	JEQ  call
	MOVQ (Frame__size+1*8)(R12), SI
	CMPQ CX, $2
	JEQ  call
	MOVQ (Frame__size+2*8)(R12), DX
	CMPQ CX, $3
	JEQ  call
	CMPQ CX, $4
	JEQ  four
	CMPQ CX, $5
	JEQ  five
	MOVQ (Frame__size+5*8)(R12), R9

five:
	MOVQ (Frame__size+4*8)(R12), R8

four:
	MOVQ (Frame__size+3*8)(R12), CX

call:
	MOVQ Frame_Fn(R12), R10
	XORL AX, AX             // no vector registers are arguments
	CALL R10
	MOVQ AX, Frame_Result(R12)
	MOVQ Frame_Next(R12), R13
	TESTL AX, AX
	JEQ  follow
	MOVQ Frame_Fail(R12), CX
	TESTQ CX, CX
	CMOVQNE CX, R13

follow:
	MOVQ R13, R12
	TESTQ R12, R12
	JNE  next

done:
	RET
